"""Generate docs/api.md from the modules: every public name with one line.

Run `python -m gradmesh.cli.api_reference docs/api.md`.
"""

import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import gradmesh

# The public modules by the names that users write, in the order of the page.
MODULES = (
    "gm",
    "gm.autograd",
    "gm.rpc",
    "gm.futures",
    "gm.optim",
    "gm.optim.lr_scheduler",
    "gm.nn",
    "gm.nn.functional",
    "gm.nn.init",
    "gm.ops",
    "gm.ddp",
    "gm.ddp.comm_hooks",
    "gm.process_group",
    "gm.errors",
)
# Classes whose methods are listed, too: all, or those named. Methods of tensors, layers and
# optimizers are torch's.
METHODS: dict[str, tuple[str, ...]] = {
    "gm.Mesh": (),
    "gm.Table": (),
    "gm.TableReader": (),
    "gm.DataShards": (),
    "gm.LocalCluster": (),
    "gm.RRef": (),
    "gm.Future": (),
    "gm.rpc.Node": ("mesh", "name"),
    "gm.autograd.Context": ("bind", "gradients", "has_mesh", "mesh", "name"),
    "gm.process_group.ProcessGroup": (),
}
_HEAD = """# Public API

<!-- made by `python -m gradmesh.cli.api_reference docs/api.md` -->

`import gradmesh as gm`. These names are public, and the methods of tensors, layers and optimizers
without a leading underscore. Everything else may change without notice.
"""


def page() -> str:
    """Return docs/api.md."""
    return _HEAD + "".join(_section(name) for name in MODULES)


def _section(name: str) -> str:
    module = resolve(name)
    listed = [public for public in public_names(module) if f"{name}.{public}" not in MODULES[1:]]
    rows = "".join(
        _rows(f"{name}.{public}", getattr(module, public)) for public in sorted(listed, key=_key)
    )
    return f"\n## {name}\n\n{_line(module)}\n\n| name | what it is |\n|---|---|\n{rows}"


def _rows(name: str, value: Any) -> str:
    row = f"| `{name}` | {_line(value)} |\n"
    if name not in METHODS:
        return row
    chosen = METHODS[name]
    methods = (pair for pair in _methods(value) if not chosen or pair[0] in chosen)
    return row + "".join(f"| `{name}.{m}` | {_line(v)} |\n" for m, v in methods)


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    for name in dir(cls):
        value = inspect.getattr_static(cls, name)
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            yield name, value


def public_names(module: ModuleType) -> list[str]:
    """Return the public names of a module."""
    listed: list[str] | None = getattr(module, "__all__", None)
    if listed is not None:
        return listed
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def _key(name: str) -> tuple[str, str]:
    return name.lower(), name


def _line(value: Any) -> str:
    """Return the first sentence of what documents a value."""
    if typing.get_origin(value) is typing.Literal:
        return "One of " + ", ".join(f'`"{choice}"`' for choice in typing.get_args(value)) + "."
    if typing.get_origin(value) is Callable:
        *taken, given = typing.get_args(value)
        taken_types = ", ".join(one.__name__ for one in taken[0])
        return f"A function ({taken_types}) that returns a {given.__name__}."
    if isinstance(value, np.dtype):
        return f"The dtype {value}."
    first = (inspect.getdoc(value) or "").partition("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|")


def resolve(name: str) -> ModuleType:
    """Return a public module by the name that users write, such as `gm.rpc`."""
    module: Any = gradmesh
    for part in name.split(".")[1:]:
        module = getattr(module, part)
    assert isinstance(module, ModuleType)
    return import_module(module.__name__)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
