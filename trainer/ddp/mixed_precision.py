"""Mixed precision: forward and backward in a two-byte dtype, optimizer in the full one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from gradmesh.engine.autograd import HookHandle, RowGrad, Tensor, gradient_map
from gradmesh.engine.backend.dtype import as_dtype, is_float
from gradmesh.engine.nn import Module
from gradmesh.trainer.ddp.tensor_tree import map_tensors


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPrecision:
    """The dtypes of mixed precision; None leaves one unchanged.

    Raises:
        DtypeError: If the engine has no such dtype.
        ValueError: If it is not a float dtype.
    """

    param_dtype: Any = None
    """Of parameters, and of inputs, during forward and backward."""
    reduce_dtype: Any = None
    """Of gradients in the all-reduce; None means param_dtype."""
    buffer_dtype: Any = None
    """Of buffers."""
    cast_forward_inputs: bool = True
    """Whether float inputs are cast to param_dtype."""

    def __post_init__(self) -> None:
        for name in ("param_dtype", "reduce_dtype", "buffer_dtype"):
            value = getattr(self, name)
            if value is not None and not is_float(as_dtype(value)):
                raise ValueError(f"{name} is {value}; use a float dtype")

    def reduce_dtype_of(self, full: Any) -> Any:
        """Return the dtype in which gradients of a dtype are reduced."""
        chosen = self.reduce_dtype or self.param_dtype
        return full if chosen is None else as_dtype(chosen)


@final
class Caster:
    """Replace parameters by cast copies while the module runs.

    The graph keeps the cast values that backward needs, so the full parameters are restored as soon
    as forward returns; a step between forward and backward still raises.

    Args:
        precision: The dtypes.
        module: The module.
        leaves: Its parameters that are averaged.
    """

    def __init__(self, precision: MixedPrecision, module: Module, leaves: Sequence[Tensor]) -> None:
        self._precision = precision
        self._dtype = None if precision.param_dtype is None else as_dtype(precision.param_dtype)
        self._all = [p for p in module.parameters() if is_float(p.dtype)]
        if precision.buffer_dtype is not None:
            for buffer in module.buffers():
                if is_float(buffer.dtype):
                    buffer.data = buffer.data.astype(as_dtype(precision.buffer_dtype))
        self.handles: list[HookHandle] = [
            leaf.register_post_accumulate_grad_hook(_widen) for leaf in leaves
        ]

    def cast_inputs(self, args: Any) -> Any:
        """Return inputs with float tensors cast."""
        if self._dtype is None or not self._precision.cast_forward_inputs:
            return args
        param_dtype = self._dtype
        return map_tensors(args, lambda t: t.to(dtype=param_dtype) if is_float(t.dtype) else t)

    @contextlib.contextmanager
    def cast_parameters(self) -> Iterator[None]:
        """Use cast parameters inside the block."""
        if self._dtype is None:
            yield
            return
        full = [parameter.data for parameter in self._all]
        for parameter in self._all:
            parameter.data = parameter.data.astype(self._dtype, copy=False)
        try:
            yield
        finally:
            for parameter, data in zip(self._all, full, strict=True):
                parameter.data = data


def _widen(leaf: Tensor) -> None:
    """Cast a gradient to the dtype of its parameter."""
    into = gradient_map()
    if into is not None:
        into[leaf] = _cast(into[leaf], leaf.dtype)
    elif isinstance(leaf.grad, RowGrad):
        leaf.grad = _cast(leaf.grad, leaf.dtype)
    elif leaf.grad.dtype != leaf.dtype:
        leaf.grad = Tensor(_cast(leaf.grad.data, leaf.dtype))


def _cast(grad: Any, dtype: Any) -> Any:
    if isinstance(grad, RowGrad):
        rows = grad.rows.astype(dtype, copy=False)
        return RowGrad(grad.ids, rows, grad.num_rows, coalesced=grad.coalesced)
    return grad.astype(dtype, copy=False)
