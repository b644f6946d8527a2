"""Settings of the coordinator."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.network import SecurityConfig, listening
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
        None, "Folder that keeps the state over a restart; none keeps it in memory only."
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
        "Trainers that train when no more come; others may join and leave meanwhile. 0 for no "
        "fewer than all.",
        minimum=0,
        maximum=4096,
    )
    join_window_s: float = setting(
        3.0,
        "Seconds that fewer trainers than all wait for others to come.",
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
        """Yield what is wrong between the fields, and what is unsafe about the address."""
        if self.min_trainers > self.trainers:
            yield Problem("min_trainers", "must not exceed trainers; lower it")
        if SecurityConfig in sections:
            yield from sections[SecurityConfig].problems_at("listen", self.listen)
