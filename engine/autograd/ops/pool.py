"""Pooling over windows of images."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.floats import wide
from gradmesh.engine.autograd.ops.window import Window, pair
from gradmesh.engine.backend import Array, ShapeError, array_module


class _MaxPool2d(Function):
    """Take the largest element of each window; of equals the first, NaN before all."""

    __slots__ = ("shape", "window")

    @staticmethod
    def forward(ctx: Any, x: Array, window: Window) -> Array:
        _check(x)
        xp = array_module(x)
        source = window.padded(x, float("-inf"))
        # NaN is larger than everything, as in torch; a comparison does not say so.
        has_nan = bool((x != x).any())
        best = which = None
        for i, j, down, across in window.positions(x.shape[2], x.shape[3]):
            candidate = source[:, :, down, across]
            number = i * window.size[1] + j
            if best is None or which is None:
                best = candidate.copy()
                which = xp.zeros(best.shape, dtype="int16")
                continue
            better = candidate > best
            if has_nan:
                better |= candidate != candidate
            xp.copyto(best, candidate, where=better)
            which[better] = number
        ctx.shape, ctx.window = x.shape, window
        ctx.save_for_backward(which)
        return best

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (which,) = ctx.saved_tensors
        window, (count, channels, height, width) = ctx.window, ctx.shape
        top, left = window.padding
        shape = (count, channels, height + 2 * top, width + 2 * left)
        given = wide(grad)
        sums = array_module(grad).zeros(shape, dtype=given.dtype)
        for i, j, down, across in window.positions(height, width):
            mine = which == i * window.size[1] + j
            sums[:, :, down, across] += array_module(grad).where(mine, given, given.dtype.type(0))
        return sums[:, :, top : top + height, left : left + width].astype(grad.dtype), None


class _AvgPool2d(Function):
    __slots__ = ("shape", "window")

    @staticmethod
    def forward(ctx: Any, x: Array, window: Window) -> Array:
        _check(x)
        ctx.shape, ctx.window = x.shape, window
        source = window.padded(x)
        rows, cols = window.out_size(x.shape[2], x.shape[3])
        sums = array_module(x).zeros((*x.shape[:2], rows, cols), dtype=wide(x[:0]).dtype)
        for _, _, down, across in window.positions(x.shape[2], x.shape[3]):
            sums += source[:, :, down, across]
        sums /= window.size[0] * window.size[1]
        return sums.astype(x.dtype, copy=False)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        window, (count, channels, height, width) = ctx.window, ctx.shape
        top, left = window.padding
        shape = (count, channels, height + 2 * top, width + 2 * left)
        share = wide(grad) / (window.size[0] * window.size[1])
        sums = array_module(grad).zeros(shape, dtype=share.dtype)
        for _, _, down, across in window.positions(height, width):
            sums[:, :, down, across] += share
        return sums[:, :, top : top + height, left : left + width].astype(grad.dtype), None


class _AdaptiveAvgPool2d(Function):
    """Cut the image into a grid and average each cell; cells may overlap by one element."""

    __slots__ = ("grid", "shape")

    @staticmethod
    def forward(ctx: Any, x: Array, size: tuple[int, int]) -> Array:
        _check(x)
        ctx.shape = x.shape
        ctx.grid = [_cuts(x.shape[2], size[0]), _cuts(x.shape[3], size[1])]
        out = array_module(x).empty((*x.shape[:2], *size), dtype=x.dtype)
        for i, down in enumerate(ctx.grid[0]):
            for j, across in enumerate(ctx.grid[1]):
                out[:, :, i, j] = wide(x[:, :, down, across]).mean(axis=(2, 3))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        given = wide(grad)
        out = array_module(grad).zeros(ctx.shape, dtype=given.dtype)
        for i, down in enumerate(ctx.grid[0]):
            for j, across in enumerate(ctx.grid[1]):
                area = (down.stop - down.start) * (across.stop - across.start)
                out[:, :, down, across] += given[:, :, i : i + 1, j : j + 1] / area
        return out.astype(grad.dtype, copy=False), None


def _cuts(length: int, parts: int) -> list[slice]:
    return [slice(i * length // parts, -(-(i + 1) * length // parts)) for i in range(parts)]


def _check(x: Array) -> None:
    if x.ndim != 4:
        raise ShapeError(f"pooling needs [batch, channels, height, width], got {tuple(x.shape)}")


def _window(name: str, kernel_size: Any, stride: Any, padding: Any) -> Window:
    size, margin = pair(kernel_size), pair(padding)
    if any(not 0 <= 2 * p <= n for p, n in zip(margin, size, strict=True)):
        raise ShapeError(f"{name}: padding {margin} is more than half of the window {size}")
    return Window(size, pair(kernel_size if stride is None else stride), margin)


def max_pool2d(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Any:
    """Return the largest element of each window; the default stride is the window size."""
    return _MaxPool2d.apply(x, _window("max_pool2d", kernel_size, stride, padding))


def avg_pool2d(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Any:
    """Return the mean of each window, padding included."""
    return _AvgPool2d.apply(x, _window("avg_pool2d", kernel_size, stride, padding))


def adaptive_avg_pool2d(x: Any, output_size: Any) -> Any:
    """Return means over a grid of the given output size, for images of any size."""
    return _AdaptiveAvgPool2d.apply(x, pair(output_size))
