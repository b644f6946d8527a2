"""Hooks that see the gradients of a module's arguments and results.

Identity ops (gates) before and after the module pass values and gradients through. In backward the
gate after the module runs first and keeps the gradients of the results; the gate before the module
calls the hooks with both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from gradmesh.engine.autograd import Function, Tensor


class _Gate(Function):
    """Pass arrays through; call a function with their gradients, which may replace them."""

    __slots__ = ("on_grads",)

    @staticmethod
    def forward(ctx: Any, on_grads: Callable[[tuple[Any, ...]], Any], *arrays: Any) -> Any:
        ctx.on_grads = on_grads
        return arrays if len(arrays) > 1 else arrays[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return (None, *ctx.on_grads(grads))


@final
class BackwardWatch:
    """Watch one call of a module.

    Args:
        module: The module, as the hooks get it.
        hooks: Called with module, gradients of the arguments and gradients of the results.
    """

    def __init__(self, module: Any, hooks: Sequence[Callable[..., Any]]) -> None:
        self._module = module
        self._hooks = hooks
        self._results: tuple[Any, ...] = ()
        self._has_gate = False

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments behind a gate."""
        placed = _through(args, self._run)
        self._has_gate = any(a is not b for a, b in zip(args, placed, strict=True))
        return placed

    def results(self, result: Any) -> Any:
        """Return the result, a tensor or a tuple, before a gate."""
        if isinstance(result, tuple):
            return _through(result, self._keep)
        return _through((result,), self._keep)[0]

    def _keep(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        self._results = grads
        if not self._has_gate:
            # No argument has a gradient, so no other gate will call the hooks.
            self._run(())
        return grads

    def _run(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        given = tuple([_shown(grad) for grad in grads])
        results = tuple([_shown(grad) for grad in self._results])
        for hook in tuple(self._hooks):
            changed = hook(self._module, given, results)
            if changed is not None:
                given = changed if isinstance(changed, tuple) else (changed,)
        return tuple([grad.data if isinstance(grad, Tensor) else grad for grad in given])


def _through(
    values: tuple[Any, ...], on_grads: Callable[[tuple[Any, ...]], Any]
) -> tuple[Any, ...]:
    """Return the values, those that require a gradient passed through one gate."""
    positions = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.requires_grad]
    if not positions:
        return values
    led = _Gate.apply(on_grads, *[values[i] for i in positions])
    if not isinstance(led, tuple):
        led = (led,)
    placed = list(values)
    for i, out in zip(positions, led, strict=True):
        # The same memory, so that changes in place are counted together, and refused if recorded.
        out.version = values[i].version
        out.seen = out.version[1]
        placed[i] = out
    return tuple(placed)


def _shown(grad: Any) -> Any:
    return Tensor(grad) if hasattr(grad, "strides") else grad
