"""Equations that torch refuses are refused, by name; integers multiply exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine.backend import DtypeError, ShapeError

BAD: list[tuple[str, list[tuple[int, ...]], type[Exception], str]] = [
    ("ij->ijk", [(2, 2)], ValueError, "'k' of the result"),
    ("ij->ii", [(2, 2)], ValueError, "'i' of the result"),
    ("ij,j", [(2, 2)], ValueError, "has 2 operands, but 1 are given"),
    ("ij", [(2, 2), (2, 2)], ValueError, "has 1 operands, but 2 are given"),
    ("ij", [], ValueError, "takes an equation"),
    ("i1", [(2, 2)], ValueError, "is not letters"),
    ("i..j", [(2, 2)], ValueError, "is not letters"),
    ("...i...", [(2, 2)], ValueError, "is not letters"),
    ("i->i->i", [(2,)], ValueError, "is not letters"),
    ("ij>i", [(2, 2)], ValueError, "is not letters"),
    ("ijk", [(2, 2)], ShapeError, r"'ijk' does not fit operand 0 of shape \(2, 2\)"),
    ("i", [(2, 2)], ShapeError, "'i' does not fit operand 0"),
    ("ijk...", [(2, 2)], ShapeError, "'ijk...' does not fit"),
    ("ij,jk", [(2, 3), (2, 4)], ShapeError, "'j' has length 2 in operand 1 and 3 before"),
    ("b...,b...->b", [(2, 3), (2, 4)], ShapeError, r"axis -1 of '\.\.\.' has length 4"),
    ("ii", [(2, 3)], ShapeError, "'i' of operand 0 has lengths 2 and 3"),
    ("ii", [(1, 3)], ShapeError, "'i' of operand 0 has lengths 1 and 3"),
]


@pytest.mark.parametrize(("equation", "shapes", "error", "text"), BAD)
def test_arguments_that_do_not_fit_are_named(
    equation: str, shapes: list[tuple[int, ...]], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=f"einsum: .*{text}"):
        gm.ops.einsum(equation, *[gm.ones(*shape) for shape in shapes])


@pytest.mark.parametrize(("equation", "shapes"), [row[:2] for row in BAD])
def test_torch_refuses_the_same(equation: str, shapes: list[tuple[int, ...]]) -> None:
    torch = pytest.importorskip("torch")

    with pytest.raises((RuntimeError, ValueError)):
        torch.einsum(equation, *[torch.ones(*shape) for shape in shapes])


def test_dtypes_do_not_mix() -> None:
    with pytest.raises(DtypeError, match=r"einsum: .*\['float32', 'float64'\]"):
        gm.ops.einsum("i,i", gm.ones(2), gm.ones(2, dtype="float64"))
    with pytest.raises(DtypeError, match=r"einsum: .*bool"):
        gm.ops.einsum("i,i", gm.ones(2) > 0, gm.ones(2) > 0)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,ij->ij", "ij,kl->il", "ij,jk"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "float16", "bfloat16"])
def test_other_dtypes_equal_torch(equation: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    values: list[Any] = [np.arange(4).reshape(2, 2) + i for i in range(2)]

    found = gm.ops.einsum(equation, *[gm.tensor(v).to(dtype) for v in values])
    expected = torch.einsum(equation, *[torch.tensor(v).to(getattr(torch, dtype)) for v in values])

    assert found.tolist() == expected.tolist()
    assert str(found.dtype) == str(expected.dtype).removeprefix("torch.")
