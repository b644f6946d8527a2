"""Settings of the coordinator, of a parameter server and of a worker."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias, final

from gradmesh.sdk.node.config import MemberConfig
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.network import SecurityConfig, listening, worker_name
from gradmesh.sdk.process.setting import Problem, Section, setting


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig(Section):
    """The [coordinator] table."""

    section: ClassVar[str] = "coordinator"

    listen: str = setting(
        "127.0.0.1:7070", "Address to serve on; port 0 takes a free one.", check=listening
    )
    state_dir: Path | None = setting(
        None, "Folder that stores the state across restarts; none keeps it in memory only."
    )
    address_file: Path | None = setting(
        None, "File that receives the bound address once the coordinator serves."
    )
    parameter_servers: int = setting(
        1, "Parameter servers that must have joined before tables exist.", minimum=1, maximum=4096
    )
    trainers: int = setting(
        1, "Trainers that must have joined before training begins.", minimum=0, maximum=4096
    )
    min_trainers: int = setting(
        0,
        "Trainers that suffice when no more join; others may join and leave meanwhile. 0 requires "
        "all.",
        minimum=0,
        maximum=4096,
    )
    join_window_s: float = setting(
        3.0,
        "Seconds without another join before fewer trainers than all form a generation.",
        minimum=0,
        maximum=3600,
    )
    lease_s: float = setting(
        10.0, "Seconds without a heartbeat after which a member is lost.", minimum=0.2, maximum=3600
    )
    server_threads: int = setting(
        32, "Threads that serve calls; waiting calls hold one each.", minimum=2, maximum=1024
    )

    def problems_with(self, sections: Sections) -> Iterable[Problem]:
        """Yield the conflicts between fields, and what is unsafe about the address."""
        if self.min_trainers > self.trainers:
            yield Problem("min_trainers", "must not exceed trainers; lower it")
        if SecurityConfig in sections:
            yield from sections[SecurityConfig].problems_of_serving("listen", self.listen)


Durability: TypeAlias = Literal["off", "os", "fsync"]
"""How durable a change is when it is acknowledged."""


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
        "Size of the log at which a snapshot of all tables replaces it; at least the size of the "
        "tables.",
        minimum=1 << 20,
    )
    ssd_path: Path | None = setting(
        None, "Directory for the rows of tables with hot_bytes that are not in memory."
    )
    max_ssd_bytes: int = setting(
        64 << 30, "Disk space that the rows of one table may take there, in bytes.", minimum=1 << 20
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(MemberConfig):
    """The [worker] table."""

    section: ClassVar[str] = "worker"

    rank: int | None = setting(
        None, "Rank of this worker, by which others may call it.", minimum=0, maximum=1 << 20
    )
    server_threads: int = setting(
        16,
        "Calls served at once; more are queued, unless a caller waits for them.",
        minimum=1,
        maximum=1024,
    )
