"""Padding of convolutions by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
