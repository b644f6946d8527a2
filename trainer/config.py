"""Settings of a trainer process; what it trains is in the [job] table."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

from gradmesh.sdk.process.address import listening, reachable, split
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.errors import Problem
from gradmesh.sdk.process.name import worker_name
from gradmesh.sdk.process.security import SecurityConfig
from gradmesh.sdk.process.setting import Section, setting
from gradmesh.trainer.process_group.backend import Backend


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig(Section):
    """The [trainer] table."""

    section: ClassVar[str] = "trainer"

    name: str = setting(
        "trainer-0", "Name of this trainer, unique in the cluster.", check=worker_name
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
    backend: Backend = setting(
        "auto",
        "How trainers exchange gradients: shared memory on one host (shm), sockets (tcp), MPI "
        "(mpi), NCCL (nccl), alone (local), or shm or tcp by where they run (auto).",
    )
    replace: bool = setting(
        False,
        "Whether a former process of this name is known to be gone, as after a supervised restart.",
    )
    join_timeout_s: float = setting(
        60.0, "Seconds to look for the coordinator before giving up.", minimum=0.1, maximum=86400
    )

    def problems(self) -> Iterable[Problem]:
        """Yield what others could not make sense of."""
        if split(self.listen)[0] in ("0.0.0.0", "::") and self.advertise is None:
            text = "must say where others reach this process when listen means everywhere"
            yield Problem("advertise", text)

    def problems_with(self, sections: Sections) -> Iterable[Problem]:
        """Yield what is unsafe about the addresses."""
        if SecurityConfig in sections:
            yield from sections[SecurityConfig].problems_at("listen", self.listen)
            yield from sections[SecurityConfig].problems_at("coordinator", self.coordinator)
