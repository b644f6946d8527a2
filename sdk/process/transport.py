"""Which way the calls of a process take beside gRPC."""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

from gradmesh.sdk.process.setting import Section, setting

LaneChoice: TypeAlias = Literal["auto", "shm", "tcp", "grpc", "unary"]
"""The best that both ends can, shared memory, TCP, streams of gRPC, or a gRPC call each."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig(Section):
    """The [transport] table: lanes for the hot calls a process serves and makes."""

    section: ClassVar[str] = "transport"

    lane: LaneChoice = setting(
        "auto",
        "Way of hot calls: shared memory (shm) on one host, a TCP socket (tcp) between hosts, "
        "the best of them (auto), gRPC alone over long-lived streams (grpc), or a gRPC call for "
        "each (unary), for proxies that end streams.",
    )
    lane_port: int = setting(
        0,
        "TCP port of lanes, on the host this process listens on; 0 takes a free one.",
        minimum=0,
        maximum=65535,
    )
    max_lanes: int = setting(
        256,
        "Lane connections served at once; callers beyond it stay on gRPC.",
        minimum=1,
        maximum=65536,
    )
