"""Leaves: hooks on their gradients, and where a complete gradient goes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, final

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd.row_grad import RowGrad, add_grads
from gradmesh.engine.backend import ShapeError, array_module, as_array


@final
class HookHandle:
    """A handle to remove a hook; also a context manager."""

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
    """Hold the optional state of a leaf: hooks, and a buffer for the first gradient."""

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


# Guards the maps that leaf gradients go into: passes of several threads may add to one.
_adding = threading.Lock()


def accumulate_leaf(leaf: Any, grad: Any, owned: bool, into: dict[Any, Any] | None) -> None:
    """Run the leaf's hooks and add its gradient to `into`, or to `.grad` if into is None.

    Args:
        leaf: The leaf tensor.
        grad: Its complete gradient of this pass, array or RowGrad.
        owned: Whether the pass holds the only reference to the array, so that no copy is needed.
        into: The caller's map, or None.
    """
    if grad.shape != leaf.data.shape:
        raise ShapeError(f"gradient of shape {tuple(grad.shape)} for a leaf of shape {leaf.shape}")
    extras = leaf.extras
    if extras is None:
        _keep(leaf, grad, owned, into, None)
        return
    if extras.hooks is not None:
        for hook in extras.hooks:
            grad = hook(grad)
        owned = False
    _keep(leaf, grad, owned, into, extras.grad_buffer)
    if extras.post_hooks is not None:
        for hook in extras.post_hooks:
            hook(leaf)


def _keep(leaf: Any, grad: Any, owned: bool, into: dict[Any, Any] | None, buffer: Any) -> None:
    if into is not None:
        with _adding:
            if leaf in into:
                into[leaf] = as_array(add_grads(into[leaf], grad))
            else:
                into[leaf] = grad if owned or type(grad) is RowGrad else grad.copy()
        return
    held = leaf.grad
    if type(grad) is RowGrad or type(held) is RowGrad:
        _into_sparse(leaf, held, grad)
    elif held is not None:
        # In place, so that a gradient that lives in a reducer's bucket stays there.
        array_module(grad).add(held.data, grad, out=held.data)
        held.version[0] += 1
    elif buffer is not None:
        buffer[...] = grad
        leaf.grad = tensor_module.Tensor(buffer)
    else:
        leaf.grad = tensor_module.Tensor(grad if owned else grad.copy())


def _into_sparse(leaf: Any, held: Any, grad: Any) -> None:
    if held is None:
        leaf.grad = grad
        return
    old = held if type(held) is RowGrad else held.data
    total = add_grads(old, grad)
    leaf.grad = total if type(total) is RowGrad else tensor_module.Tensor(total)
