"""Settings of a parameter server."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias, final

from gradmesh.sdk.node.config import MemberConfig
from gradmesh.sdk.process.network import worker_name
from gradmesh.sdk.process.setting import setting

Durability: TypeAlias = Literal["off", "os", "fsync"]
"""What a change must have survived before it is acknowledged."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterServerConfig(MemberConfig):
    """The [parameter_server] table."""

    section: ClassVar[str] = "parameter_server"

    name: str = setting(
        "parameter-server-0", "Name of this server, unique in the cluster.", check=worker_name
    )
    server_threads: int = setting(16, "Threads that serve calls.", minimum=1, maximum=1024)
    max_frame_bytes: int = setting(
        256 << 20, "Biggest message accepted, in bytes.", minimum=4096, maximum=(1 << 31) - 1
    )
    max_store_bytes: int = setting(
        8 << 30, "Memory that all tables of this server may take, in bytes.", minimum=1 << 20
    )

    state_dir: Path | None = setting(
        None, "Folder of this server's log, from which it recovers; none keeps rows in memory only."
    )
    durability: Durability = setting(
        "os",
        "When a change is acknowledged: when the operating system has it (os), when the disk has "
        "it (fsync), or at once, without a log (off).",
    )
    snapshot_bytes: int = setting(
        1 << 30,
        "Size of the log at which all tables are written out and it begins anew; at least the size "
        "of the tables.",
        minimum=1 << 20,
    )
    ssd_path: Path | None = setting(
        None, "Directory for the rows of tables with hot_bytes that are not in memory."
    )
    max_ssd_bytes: int = setting(
        64 << 30, "Disk that the rows of one table may take there, in bytes.", minimum=1 << 20
    )
