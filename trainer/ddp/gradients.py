"""Read and write the gradients of a backward pass: in `.grad`, or in the map of a context."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import RowGrad, Tensor
from gradmesh.engine.backend import Array, array_module, to_numpy


def copy_into(target: Array, source: Array) -> None:
    """Copy an array into another of its shape, between host and device if needed."""
    if isinstance(target, np.ndarray):
        target[...] = to_numpy(source)
    else:
        target[...] = array_module(target).asarray(source)


@final
class Gradients:
    """Read and write the gradients of one pass.

    Args:
        into: The context's map, leaf to array or RowGrad; None means `.grad`.
    """

    __slots__ = ("into",)

    def __init__(self, into: dict[Any, Any] | None) -> None:
        self.into = into

    def get(self, leaf: Tensor) -> Any:
        """Return a leaf's gradient, array or RowGrad, or None."""
        if self.into is not None:
            return self.into.get(leaf)
        grad = leaf.grad
        return grad if grad is None or isinstance(grad, RowGrad) else grad.data

    def put(self, leaf: Tensor, value: Any) -> None:
        """Replace a leaf's gradient; arrays are copied, into the existing one if it fits."""
        if isinstance(value, RowGrad):
            self._set(leaf, value)
            return
        if value.dtype != leaf.dtype:
            value = value.astype(leaf.dtype)
        held = self.get(leaf)
        if held is value:
            return
        if _fits(held, value, leaf):
            copy_into(held, value)
            if self.into is None:
                leaf.grad.version[0] += 1
            return
        made = array_module(leaf.data).empty(leaf.shape, dtype=value.dtype)
        copy_into(made, value)
        self._set(leaf, made)

    def alias(self, leaf: Tensor, value: Any) -> None:
        """Make `.grad` a view of the value; a context's map gets a copy."""
        if self.into is not None or isinstance(value, RowGrad):
            self.put(leaf, value)
            return
        if leaf.grad is None or leaf.grad.data is not value:
            leaf.grad = Tensor(value)
        leaf.grad.version[0] += 1

    def drop(self, leaf: Tensor) -> None:
        """Drop a leaf's gradient."""
        if self.into is None:
            leaf.grad = None
        else:
            self.into.pop(leaf, None)

    def _set(self, leaf: Tensor, value: Any) -> None:
        if self.into is not None:
            self.into[leaf] = value
        else:
            leaf.grad = value if isinstance(value, RowGrad) else Tensor(value)


def _fits(held: Any, value: Array, leaf: Tensor) -> bool:
    if held is None or isinstance(held, RowGrad) or held.dtype != value.dtype:
        return False
    flags = getattr(held, "flags", None)
    # cupy has no such flag: device memory is always writable.
    return bool(getattr(flags, "writeable", True)) and tuple(held.shape) == leaf.shape
