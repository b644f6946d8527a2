"""Settings of every process that serves functions."""

import importlib
import os
import re
import sys
from dataclasses import dataclass
from typing import ClassVar, final

from gradmesh.sdk.process.setting import ConfigError, Problem, Section, setting

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
        "Modules to import at the start: what they register with @gm.remote can be called here.",
        check=_modules,
        flag="--import",
    )
    timeout_s: float = setting(
        60.0,
        "Deadline of calls that this process makes and that set none, in seconds; 0 for no limit.",
        minimum=0,
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
