"""Settings of every member of the mesh, in any role."""

import importlib
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.network import (
    SecurityConfig,
    is_everywhere,
    listening,
    reachable,
    worker_name,
)
from gradmesh.sdk.process.setting import ConfigError, Problem, Section, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig(Section):
    """The fields that the tables of all roles share; a role adds its own."""

    section: ClassVar[str] = ""

    name: str = setting(
        "worker-0", "Name of this worker, unique in the cluster.", check=worker_name
    )
    listen: str = setting(
        "127.0.0.1:0",
        "Address to serve on and to register; port 0 takes a free one.",
        check=listening,
    )
    advertise: str | None = setting(
        None,
        "Address at which others reach this process, if it differs from the one it listens on.",
        check=reachable,
    )
    coordinator: str = setting("127.0.0.1:7070", "Address of the coordinator.", check=reachable)
    replace: bool = setting(
        False,
        "Whether a former process of this name is known to be dead, as after a supervised restart.",
    )
    join_timeout_s: float = setting(
        60.0,
        "Seconds to try to reach the coordinator before giving up.",
        minimum=0.1,
        maximum=86400,
    )

    def problems(self) -> Iterable[Problem]:
        """Yield addresses that other processes could not use."""
        if is_everywhere(self.listen) and self.advertise is None:
            text = "must name a reachable address when listen means all interfaces"
            yield Problem("advertise", text)

    def problems_with(self, sections: Sections) -> Iterable[Problem]:
        """Yield unsafe addresses."""
        if SecurityConfig in sections:
            yield from sections[SecurityConfig].problems_of_serving("listen", self.listen)
            yield from sections[SecurityConfig].problems_at("coordinator", self.coordinator)


_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def _modules(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if _MODULE.fullmatch(name) is None:
            raise ValueError(f"expected names of modules, such as my.functions, got {name!r}")
    return names


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RpcConfig(Section):
    """The [rpc] table."""

    section: ClassVar[str] = "rpc"
    flag_prefix: ClassVar[str] = "rpc-"

    imports: tuple[str, ...] = setting(
        (),
        "Modules to import at the start; what they register (@gm.rpc.register) is callable here.",
        check=_modules,
        flag="--import",
    )
    timeout_s: float = setting(
        60.0,
        "Deadline of calls that this process makes and that set none, in seconds.",
        minimum=0.001,
        maximum=2592000,
    )

    def import_modules(self) -> None:
        """Import the modules, found as Python finds them and in the working directory.

        Raises:
            ConfigError: One cannot be imported.
        """
        here = os.getcwd()
        if self.imports and here not in sys.path and "" not in sys.path:
            sys.path.insert(0, here)
        for name in self.imports:
            try:
                importlib.import_module(name)
            except Exception as error:
                raise ConfigError(
                    [Problem("rpc.imports", f"{name} cannot be imported: {error!r}")]
                ) from error
