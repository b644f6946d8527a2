"""Settings of a worker process."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

from gradmesh.sdk.process.address import listening, reachable
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.errors import Problem
from gradmesh.sdk.process.name import worker_name
from gradmesh.sdk.process.security import SecurityConfig
from gradmesh.sdk.process.setting import Section, setting


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(Section):
    """The [worker] table."""

    section: ClassVar[str] = "worker"

    name: str = setting(
        "worker-0", "Name of this worker, unique in the cluster.", check=worker_name
    )
    rank: int | None = setting(
        None, "Place of this worker, by which others may call it.", minimum=0, maximum=1 << 20
    )
    listen: str = setting(
        "127.0.0.1:0",
        "Address to serve on and to tell the others; port 0 takes a free one.",
        check=listening,
    )
    advertise: str | None = setting(
        None,
        "Address that others reach this process at, if it is not the one it listens on.",
        check=reachable,
    )
    coordinator: str = setting("127.0.0.1:7070", "Address of the coordinator.", check=reachable)
    replace: bool = setting(
        False,
        "Whether a former process of this name is known to be gone, as after a supervised restart.",
    )
    join_timeout_s: float = setting(
        60.0, "Seconds to look for the coordinator before giving up.", minimum=0.1, maximum=86400
    )
    server_threads: int = setting(
        16,
        "Calls served at once; more stand in line, unless somebody waits for them.",
        minimum=1,
        maximum=1024,
    )

    def problems_with(self, sections: Sections) -> Iterable[Problem]:
        """Yield what is unsafe about the addresses."""
        if SecurityConfig in sections:
            yield from sections[SecurityConfig].problems_at("listen", self.listen)
            yield from sections[SecurityConfig].problems_at("coordinator", self.coordinator)
