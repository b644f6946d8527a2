"""Convolution over one axis or two, as products of matrices.

Patches are unfolded into columns a few images at a time, so that they stay near the cache, and
again in backward: keeping them would cost kernel-size times the memory of the input.
"""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.floats import total, wide
from gradmesh.engine.autograd.ops.indexing import getitem
from gradmesh.engine.autograd.ops.shape import squeeze, unsqueeze
from gradmesh.engine.autograd.ops.window import Window, fold, named_padding, pair, single, unfold
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module, is_plain
from gradmesh.engine.backend.blas import matmul


class _Conv2d(Function):
    __slots__ = ("groups", "window")

    @staticmethod
    def forward(ctx: Any, x: Array, weight: Array, bias: Any, window: Window, groups: int) -> Array:
        _check_images(x, weight, bias, groups)
        xp = array_module(x)
        ctx.window, ctx.groups = window, groups
        ctx.save_for_backward(x, weight)
        kernel = weight.reshape(groups, weight.shape[0] // groups, -1)
        high, wide = window.out_size(x.shape[2], x.shape[3])
        out = xp.empty((x.shape[0], groups, kernel.shape[1], high * wide), dtype=x.dtype)
        for part in window.chunks(x):
            columns = unfold(x[part], window, groups)
            if is_plain(x):
                xp.matmul(kernel, columns, out=out[part])
            else:
                out[part] = matmul(kernel, columns)
        out = out.reshape(x.shape[0], weight.shape[0], high, wide)
        if bias is not None:
            out += bias.reshape(1, -1, 1, 1)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, weight = ctx.saved_tensors
        xp = array_module(x)
        window, groups = ctx.window, ctx.groups
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        kernel = weight.reshape(groups, weight.shape[0] // groups, -1)
        given = grad.reshape(len(grad), groups, kernel.shape[1], grad.shape[2] * grad.shape[3])
        grad_x = xp.empty(x.shape, dtype=x.dtype) if need_x else None
        sums = xp.zeros(kernel.shape, dtype=wide(x[:0]).dtype) if need_weight else None
        transposed = kernel.transpose(0, 2, 1)
        for part in window.chunks(x):
            if need_weight:
                columns = unfold(x[part], window, groups)
                # Image by image, so that the sum does not depend on the size of a chunk.
                for one, column in zip(given[part], columns, strict=True):
                    sums += matmul(one, column.transpose(0, 2, 1))
            if grad_x is not None:
                fold(matmul(transposed, given[part]), window, grad_x[part])
        return (
            grad_x,
            None if sums is None else sums.reshape(weight.shape).astype(x.dtype, copy=False),
            total(grad, (0, 2, 3)) if need_bias else None,
            None,
            None,
        )


def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Return the cross-correlation of images with kernels.

    Args:
        x: [batch, in_channels, height, width].
        weight: [out_channels, in_channels / groups, kernel height, kernel width].
        bias: [out_channels], or None.
        stride: Step between two patches, one number or two.
        padding: Zeros around the image, one number or two, or "same" or "valid".
        dilation: Step between two elements of a patch, one number or two.
        groups: Independent groups of channels.
    """
    size = tuple(weight.shape[2:])
    if isinstance(padding, str):
        steps, spread = pair(stride), pair(dilation)
        zeros, (top, left) = named_padding(padding, size, steps, spread)
        window = Window(size, steps, pair(zeros), spread)
        out = convolve(x, weight, bias, window, groups)
        return getitem(out, (..., slice(top, None), slice(left, None))) if top or left else out
    return convolve(
        x, weight, bias, Window(size, pair(stride), pair(padding), pair(dilation)), groups
    )


def convolve(x: Any, weight: Any, bias: Any, window: Window, groups: int) -> Any:
    """Return the cross-correlation of images with kernels that visit them as a window does."""
    return _Conv2d.apply(x, weight, bias, window, groups)


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
    _check_sequences(x, weight, bias, groups)
    if x.shape[2] + 2 * zeros < spread * (weight.shape[2] - 1) + 1:
        raise ShapeError(
            f"conv1d: a kernel of {weight.shape[2]} with dilation {spread} does not fit a length "
            f"of {x.shape[2]} with padding {zeros}"
        )
    window = Window((1, weight.shape[2]), (1, step), (0, zeros), (1, spread))
    out = squeeze(convolve(unsqueeze(x, 2), unsqueeze(weight, 2), bias, window, groups), 2)
    return getitem(out, (..., slice(trim, None))) if trim else out


def _check_images(x: Array, weight: Array, bias: Any, groups: int) -> None:
    if x.ndim != 4 or weight.ndim != 4:
        raise ShapeError(f"conv2d: input {x.shape} and weight {weight.shape} need four axes")
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise ShapeError(
            f"conv2d: input {x.shape} does not fit weight {weight.shape} with {groups} groups"
        )
    if x.dtype != weight.dtype:
        raise DtypeError(f"conv2d: input is {x.dtype}, weight is {weight.dtype}; cast one of them")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"conv2d: bias {bias.shape} does not fit weight {weight.shape}")
    if bias is not None and bias.dtype != x.dtype:
        raise DtypeError(f"conv2d: input is {x.dtype}, bias is {bias.dtype}; cast one of them")


def _check_sequences(x: Any, weight: Any, bias: Any, groups: int) -> None:
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
