"""Convolution over one axis: that over two, with images of one row."""

from __future__ import annotations

import operator
from typing import Any

from gradmesh.engine.autograd.ops.conv import convolve
from gradmesh.engine.autograd.ops.indexing import getitem
from gradmesh.engine.autograd.ops.padding import named_padding
from gradmesh.engine.autograd.ops.shape import squeeze, unsqueeze
from gradmesh.engine.autograd.ops.window import Window
from gradmesh.engine.backend import DtypeError, ShapeError


def single(value: Any) -> int:
    """Return a number from one or a sequence of one."""
    if isinstance(value, (tuple, list)):
        (value,) = value
    return operator.index(value)


def conv1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Return the cross-correlation of sequences with kernels.

    Args:
        x: [batch, in_channels, length], or without the batch.
        weight: [out_channels, in_channels / groups, kernel length].
        bias: [out_channels], or None.
        stride: Step between two patches.
        padding: Zeros at both ends, or "same" or "valid".
        dilation: Step between two elements of a patch.
        groups: Independent groups of channels.

    Raises:
        ShapeError: If shapes do not fit.
        DtypeError: If input and weight have two dtypes.
        ValueError: If a number is out of its range.
    """
    if x.ndim == 2:
        batch = unsqueeze(x, 0)
        return squeeze(conv1d(batch, weight, bias, stride, padding, dilation, groups), 0)
    step, spread = single(stride), single(dilation)
    trim = 0
    if isinstance(padding, str):
        (zeros,), (trim,) = named_padding(padding, weight.shape[2:3], (step,), (spread,))
    else:
        zeros = single(padding)
    if step < 1 or spread < 1 or zeros < 0 or groups < 1:
        raise ValueError(
            f"conv1d: stride {step}, dilation {spread} and groups {groups} are from 1 on, padding "
            f"{zeros} from 0"
        )
    _check(x, weight, bias, groups)
    if x.shape[2] + 2 * zeros < spread * (weight.shape[2] - 1) + 1:
        raise ShapeError(
            f"conv1d: a kernel of {weight.shape[2]} with dilation {spread} does not fit a length "
            f"of {x.shape[2]} with padding {zeros}"
        )
    window = Window((1, weight.shape[2]), (1, step), (0, zeros), (1, spread))
    out = squeeze(convolve(unsqueeze(x, 2), unsqueeze(weight, 2), bias, window, groups), 2)
    return getitem(out, (..., slice(trim, None))) if trim else out


def _check(x: Any, weight: Any, bias: Any, groups: int) -> None:
    shape, kernel = tuple(x.shape), tuple(weight.shape)
    if len(shape) != 3 or len(kernel) != 3 or not kernel[2]:
        raise ShapeError(
            f"conv1d: input {shape} needs two axes or three, weight {kernel} three, not empty"
        )
    if shape[1] != kernel[1] * groups or kernel[0] % groups:
        raise ShapeError(f"conv1d: input {shape} does not fit weight {kernel} with {groups} groups")
    if x.dtype != weight.dtype:
        raise DtypeError(f"conv1d: input is {x.dtype}, weight is {weight.dtype}; cast one of them")
    if bias is not None and tuple(bias.shape) != kernel[:1]:
        raise ShapeError(f"conv1d: bias {tuple(bias.shape)} does not fit weight {kernel}")
    if bias is not None and bias.dtype != x.dtype:
        raise DtypeError(f"conv1d: input is {x.dtype}, bias is {bias.dtype}; cast one of them")
