"""Windows that slide over images: their sizes, and patches as columns of a matrix and back."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from gradmesh.engine.autograd.ops.floats import wide
from gradmesh.engine.backend import Array, ShapeError, array_module

# Elements of patches unfolded at a time: a few MiB, which fit the caches.
_CHUNK = 1 << 21


def single(value: Any) -> int:
    """Return a number from one or a sequence of one."""
    if isinstance(value, (tuple, list)):
        (value,) = value
    return operator.index(value)


def pair(value: Any) -> tuple[int, int]:
    """Return two numbers from one or two."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Describe a window: for each of two axes its size, stride, padding and dilation."""

    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def is_point(self) -> bool:
        """Return whether the window visits single elements, so that the patches are the image."""
        return self.size == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)

    def out_size(self, high: int, wide: int) -> tuple[int, int]:
        """Return how many patches fit along each axis.

        Raises:
            ShapeError: If none fits.
        """
        found = []
        for n, k, s, p, d in zip(
            (high, wide), self.size, self.stride, self.padding, self.dilation, strict=True
        ):
            found.append((n + 2 * p - d * (k - 1) - 1) // s + 1)
        if min(found) < 1:
            raise ShapeError(f"a window of {self.size} does not fit an image of {(high, wide)}")
        return found[0], found[1]

    def positions(self, high: int, wide: int) -> Iterator[tuple[int, int, slice, slice]]:
        """Yield each position in the window with the slices of the padded image it visits."""
        rows, cols = self.out_size(high, wide)
        for i in range(self.size[0]):
            for j in range(self.size[1]):
                top, left = i * self.dilation[0], j * self.dilation[1]
                down = slice(top, top + (rows - 1) * self.stride[0] + 1, self.stride[0])
                across = slice(left, left + (cols - 1) * self.stride[1] + 1, self.stride[1])
                yield i, j, down, across

    def chunks(self, x: Array) -> Iterator[slice]:
        """Yield slices of a batch whose patches have a bounded size."""
        rows, cols = self.out_size(x.shape[2], x.shape[3])
        each = x.shape[1] * self.size[0] * self.size[1] * rows * cols
        count = len(x) if self.is_point else max(1, _CHUNK // max(each, 1))
        for start in range(0, len(x), max(count, 1)):
            yield slice(start, start + count)

    def padded(self, x: Array, value: float = 0.0) -> Array:
        """Return images with their padding around them."""
        down, across = self.padding
        if not down and not across:
            return x
        shape = (*x.shape[:2], x.shape[2] + 2 * down, x.shape[3] + 2 * across)
        out = array_module(x).full(shape, value, dtype=x.dtype)
        out[:, :, down : down + x.shape[2], across : across + x.shape[3]] = x
        return out


def unfold(x: Array, window: Window, groups: int) -> Array:
    """Return patches as columns, [n, groups, channels / groups * window, patches]."""
    count, channels, high, wide = x.shape
    if window.is_point:
        return x.reshape(count, groups, channels // groups, high * wide)
    rows, cols = window.out_size(high, wide)
    shape = (count, channels, *window.size, rows, cols)
    out = array_module(x).empty(shape, dtype=x.dtype)
    source = window.padded(x)
    for i, j, down, across in window.positions(high, wide):
        out[:, :, i, j] = source[:, :, down, across]
    depth = channels // groups * window.size[0] * window.size[1]
    return out.reshape(count, groups, depth, rows * cols)


def fold(columns: Array, window: Window, out: Array) -> None:
    """Sum columns of patches back into images [n, channels, height, width]; out is overwritten."""
    count, channels, height, width = out.shape
    if window.is_point:
        out[...] = columns.reshape(out.shape)
        return
    rows, cols = window.out_size(height, width)
    patches = columns.reshape(count, channels, *window.size, rows, cols)
    top, left = window.padding
    shape = (count, channels, height + 2 * top, width + 2 * left)
    sums = array_module(out).zeros(shape, dtype=wide(out[:0]).dtype)
    for i, j, down, across in window.positions(height, width):
        sums[:, :, down, across] += patches[:, :, i, j]
    out[...] = sums[:, :, top : top + height, left : left + width]


def check_padding(padding: Any, stride: Sequence[int]) -> None:
    """Raise ValueError if padding is a word that a convolution with this stride cannot take."""
    if not isinstance(padding, str):
        return
    if padding not in ("same", "valid"):
        raise ValueError(f"padding is {padding!r}; use numbers, 'same' or 'valid'")
    if padding == "same" and any(step != 1 for step in stride):
        raise ValueError(f"padding 'same' needs a stride of 1, not {tuple(stride)}")


def named_padding(
    padding: str, size: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the zeros on both sides of each axis, and how many results to leave out in front.

    Where "same" needs an odd number of zeros, the result is one longer than the input with as many
    on both sides; torch has the odd one behind, so the first is left out.
    """
    check_padding(padding, stride)
    if padding == "valid":
        return (0,) * len(size), (0,) * len(size)
    needed = [step * (n - 1) for n, step in zip(size, dilation, strict=True)]
    return tuple((n + 1) // 2 for n in needed), tuple(n % 2 for n in needed)
