"""Hooks and the handles that remove them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final


@final
class HookHandle:
    """Remove a hook when asked; also usable as a context manager."""

    __slots__ = ("_hook", "_hooks")

    def __init__(self, hooks: list[Callable[..., Any]], hook: Callable[..., Any]) -> None:
        self._hooks = hooks
        self._hook = hook

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


@final
class LeafExtras:
    """Hold what few leaves have: hooks, and a buffer for the first gradient."""

    __slots__ = ("grad_buffer", "hooks", "post_hooks")

    def __init__(self) -> None:
        self.grad_buffer: Any = None
        self.hooks: list[Callable[..., Any]] | None = None
        self.post_hooks: list[Callable[..., Any]] | None = None


def add_hook(owner: Any, attribute: str, hook: Callable[..., Any]) -> HookHandle:
    """Append a hook to a list attribute of its owner, making the list on first use."""
    hooks = getattr(owner, attribute)
    if hooks is None:
        hooks = []
        setattr(owner, attribute, hooks)
    hooks.append(hook)
    return HookHandle(hooks, hook)
