"""Parameters and buffers that a wrapper leaves alone."""

from __future__ import annotations

from collections.abc import Iterable

from gradmesh.engine.nn import Module

_ATTRIBUTE = "_ddp_params_and_buffers_to_ignore"


def set_params_and_buffers_to_ignore(module: Module, names: Iterable[str]) -> None:
    """Leave some parameters and buffers out of DistributedDataParallel.

    Call it before wrapping. They are neither compared nor copied nor averaged; shapes may differ
    between ranks.

    Args:
        module: The module that will be wrapped.
        names: Dotted names, as `named_parameters` and `named_buffers` give them.

    Raises:
        KeyError: If the module has no such parameter or buffer.
    """
    wanted = set(names)
    known = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    if wanted - known:
        raise KeyError(f"{type(module).__name__} has no {', '.join(sorted(wanted - known))}")
    module.__dict__[_ATTRIBUTE] = frozenset(wanted)


def ignored_names(module: Module) -> frozenset[str]:
    """Return the names that were set on a module."""
    return frozenset(module.__dict__.get(_ATTRIBUTE, ()))
