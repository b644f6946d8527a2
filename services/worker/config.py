"""Settings of a worker process."""

from dataclasses import dataclass
from typing import ClassVar, final

from gradmesh.sdk.node.config import MemberConfig
from gradmesh.sdk.process.setting import setting


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(MemberConfig):
    """The [worker] table."""

    section: ClassVar[str] = "worker"

    rank: int | None = setting(
        None, "Place of this worker, by which others may call it.", minimum=0, maximum=1 << 20
    )
    server_threads: int = setting(
        16,
        "Calls served at once; more stand in line, unless somebody waits for them.",
        minimum=1,
        maximum=1024,
    )
