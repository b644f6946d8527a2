"""Gradient clipping, over dense gradients and row gradients alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gradmesh.engine.autograd import RowGrad, Tensor
from gradmesh.engine.autograd.ops.floats import wide
from gradmesh.engine.backend import Array, array_module


def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients so that their total norm is at most max_norm.

    Args:
        parameters: Parameters, or one.
        max_norm: Largest norm allowed.
        norm_type: Which norm; `math.inf` for the largest element.
        error_if_nonfinite: Raise if the norm is NaN or infinite.

    Returns:
        The norm before clipping.

    Raises:
        ArithmeticError: If the norm is not finite and that is an error; nothing is changed then.
    """
    arrays = _gradients(parameters)
    norms = [_norm(array, norm_type) for array in arrays]
    if math.isinf(norm_type):
        total = max(norms, default=0.0)
    else:
        total = sum(n**norm_type for n in norms) ** (1 / norm_type) if norms else 0.0
    if error_if_nonfinite and not math.isfinite(total):
        raise ArithmeticError(f"the norm of the gradients is {total}; they cannot be clipped")
    factor = min(1.0, max_norm / (total + 1e-6))
    for array in arrays:
        array *= array.dtype.type(factor)
    from gradmesh.engine.autograd import tensor

    return tensor(total)


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Clip every element of every gradient to [-clip_value, clip_value]."""
    for array in _gradients(parameters):
        array_module(array).clip(array, -clip_value, clip_value, out=array)


def _gradients(parameters: Any) -> list[Array]:
    given: Iterable[Any] = [parameters] if isinstance(parameters, Tensor) else parameters
    arrays = []
    for param in given:
        if isinstance(param.grad, RowGrad):
            # Repeated ids must be summed first: the norm is that of the sum.
            param.grad = param.grad.coalesce()
            arrays.append(param.grad.rows)
        elif param.grad is not None:
            arrays.append(param.grad.data)
    return arrays


def _norm(array: Array, norm_type: float) -> float:
    xp = array_module(array)
    flat = wide(array.reshape(-1))
    if not flat.size:
        return 0.0
    if math.isinf(norm_type):
        return float(xp.abs(flat).max())
    if norm_type == 2.0:
        return math.sqrt(float((flat * flat).sum(dtype="float64")))
    powered = float((xp.abs(flat) ** norm_type).sum(dtype="float64"))
    return math.pow(powered, 1 / norm_type)
