"""Tensor: an array and its node in the graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import gradmesh.engine.autograd.engine as engine_module
from gradmesh.engine.autograd.grad_mode import state
from gradmesh.engine.autograd.leaf import HookHandle, LeafExtras, add_hook
from gradmesh.engine.autograd.methods import Methods
from gradmesh.engine.backend import (
    Array,
    Device,
    DimError,
    DtypeError,
    ShapeError,
    device_of,
    to_numpy,
)
from gradmesh.engine.backend.dtype import is_float
from gradmesh.engine.errors import GradientError


class Tensor(Methods):
    """A multi-dimensional array with automatic differentiation.

    Args:
        data: The array, kept without a copy.
        requires_grad: Whether backward passes compute this tensor's gradient.
    """

    __slots__ = (
        "__weakref__",
        "_requires_grad",
        "data",
        "extras",
        "grad",
        "grad_fn",
        "seen",
        "version",
    )

    is_node = False

    data: Array
    grad: Any
    extras: LeafExtras | None
    # Of a view: how many recorded changes its memory had seen when the view was taken.
    seen: int | None
    # Changes in place, and those of them that were recorded; a view counts with its source.
    version: list[int]

    def __init__(self, data: Array, requires_grad: bool = False) -> None:
        self.data = data
        self.grad = None
        self.grad_fn: Any = None
        self.extras = None
        self.seen = None
        self.version = [0, 0]
        self._requires_grad = False
        if requires_grad:
            self.requires_grad = True

    @property
    def requires_grad(self) -> bool:
        """Return whether backward passes compute this tensor's gradient."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and not is_float(self.data.dtype):
            raise DtypeError(f"only float tensors carry gradients, this one is {self.data.dtype}")
        if not value and self.grad_fn is not None:
            raise GradientError("requires_grad of a computed tensor cannot be unset; use detach()")
        self._requires_grad = value

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set `requires_grad` and return the tensor."""
        self.requires_grad = requires_grad
        return self

    @property
    def grad_buffer(self) -> Array | None:
        """Return the memory that a first gradient is written to, such as a slice of a bucket."""
        return None if self.extras is None else self.extras.grad_buffer

    @grad_buffer.setter
    def grad_buffer(self, buffer: Array | None) -> None:
        if buffer is not None and tuple(buffer.shape) != self.shape:
            raise ShapeError(f"a buffer of shape {tuple(buffer.shape)} for a leaf of {self.shape}")
        self._more().grad_buffer = buffer

    def _more(self) -> LeafExtras:
        if self.extras is None:
            self.extras = LeafExtras()
        return self.extras

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the length of each axis."""
        return self.data.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the elements."""
        return self.data.dtype  # type: ignore[no-any-return]

    @property
    def device(self) -> Device:
        """Return the device that holds the array."""
        return device_of(self.data)

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return int(self.data.ndim)

    @property
    def is_view(self) -> bool:
        """Return whether the tensor shares the memory of another one, as the result of an op."""
        return self.seen is not None

    @property
    def is_leaf(self) -> bool:
        """Return whether the tensor was made by the user and not by an op."""
        return self.grad_fn is None

    @property
    def is_sparse(self) -> bool:
        """Return False; a RowGrad returns True."""
        return False

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the length of one axis."""
        if dim is None:
            return self.shape
        try:
            return self.shape[dim]
        except IndexError:
            raise DimError(f"size: no axis {dim} in shape {tuple(self.shape)}") from None

    def dim(self) -> int:
        """Return the number of axes."""
        return self.ndim

    def numel(self) -> int:
        """Return the number of elements."""
        return int(self.data.size)

    def element_size(self) -> int:
        """Return the bytes of one element."""
        return int(self.data.dtype.itemsize)

    def backward(
        self, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Add the gradient of this tensor to `.grad` of every leaf it was made from.

        Args:
            gradient: Gradient of this tensor; may be left out for one element, and is 1 then.
            retain_graph: Keep the graph for another backward.
            create_graph: Refused: gradients are not differentiable themselves.

        Raises:
            GradientError: If the tensor carries no gradient, one is needed, or create_graph is set.
        """
        if create_graph:
            raise no_double_backward()
        engine_module.run_backward((self,), (gradient,), retain_graph)

    def detach(self) -> Tensor:
        """Return a tensor on the same memory, outside the graph."""
        out = Tensor(self.data)
        out.version = self.version
        return out

    def numpy(self) -> Any:
        """Return the array in host memory, shared if it is there.

        Raises:
            GradientError: If the tensor requires a gradient and gradients are recorded.
        """
        if self._requires_grad and state.enabled:
            raise GradientError("this tensor requires a gradient; use tensor.detach().numpy()")
        return to_numpy(self.data)

    def item(self) -> Any:
        """Return the only element as a Python number.

        Raises:
            ShapeError: If there are more, or none.
        """
        if self.data.size != 1:
            raise ShapeError(
                f"a tensor of shape {self.data.shape} is not one number: reduce it first, "
                "for instance with sum(), any() or all()"
            )
        return self.data.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self.data.tolist()

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> HookHandle:
        """Call a function with this tensor's gradient when it is known; it may return another."""
        if not self._requires_grad:
            raise GradientError("a hook needs a tensor that requires a gradient")

        def run(grad: Any) -> Any:
            result = hook(grad if not isinstance(grad, np.ndarray) else Tensor(grad))
            return grad if result is None else getattr(result, "data", result)

        return add_hook(self._more() if self.grad_fn is None else self.grad_fn, "hooks", run)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> HookHandle:
        """Call a function with this leaf after a backward pass has added to its gradient."""
        if not self.is_leaf:
            raise GradientError("only leaves accumulate gradients; use register_hook")
        return add_hook(self._more(), "post_hooks", hook)

    def retain_grad(self) -> None:
        """Keep the gradient of a computed tensor in `.grad` too."""
        if self.grad_fn is None:
            return
        ref = weakref.ref(self)

        def keep(grad: Any) -> Any:
            owner = ref()
            if owner is not None:
                owner.grad = Tensor(grad.copy())
            return grad

        add_hook(self.grad_fn, "hooks", keep)

    def __len__(self) -> int:
        if not self.data.shape:
            raise TypeError("len() of a tensor without axes")
        return int(self.data.shape[0])

    def __iter__(self) -> Iterator[Any]:
        if not self.data.shape:
            raise TypeError("iteration over a tensor without axes")
        return (self[position] for position in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        array = self.data
        return int(array.item()) if array.dtype.kind == "b" else int(array.__index__())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        text = np.array2string(to_numpy(self.data), separator=", ", prefix="tensor(", precision=4)
        parts = [text]
        if self.data.dtype not in (np.float32, np.int64, np.bool_):
            parts.append(f"dtype={self.data.dtype}")
        if self.device.kind != "cpu":
            parts.append(f"device={str(self.device)!r}")
        if self.grad_fn is not None:
            parts.append(f"grad_fn=<{self.grad_fn.name()}>")
        elif self._requires_grad:
            parts.append("requires_grad=True")
        return f"tensor({', '.join(parts)})"


def no_double_backward() -> GradientError:
    """Return the error for a gradient that should be differentiable."""
    return GradientError(
        "double backward is not supported: a backward pass works on plain arrays and records "
        "nothing; write the gradient as a function of its own, or take differences"
    )


def grad_of(
    outputs: Any,
    inputs: Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> tuple[Any, ...]:
    """Return the gradients of outputs with respect to inputs, without changing `.grad`.

    Inputs that are not leaves are supported; those that outputs do not depend on get None.

    Raises:
        GradientError: As `Tensor.backward`.
    """
    if create_graph:
        raise no_double_backward()
    roots = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
    seeds = (grad_outputs,) if isinstance(outputs, Tensor) else grad_outputs
    into: dict[Any, Any] = {}
    caught: dict[int, Any] = {}
    handles = [
        add_hook(t.grad_fn, "hooks", _catch(caught, position))
        for position, t in enumerate(inputs)
        if t.grad_fn is not None
    ]
    try:
        engine_module.run_backward(roots, seeds, retain_graph, into)
    finally:
        for handle in handles:
            handle.remove()
    found = [caught.get(position, into.get(t)) for position, t in enumerate(inputs)]
    return tuple(Tensor(g) if hasattr(g, "strides") else g for g in found)


def _catch(caught: dict[int, Any], position: int) -> Callable[[Any], Any]:
    def keep(grad: Any) -> Any:
        caught[position] = grad
        return grad

    return keep
