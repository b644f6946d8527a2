"""Sorting as torch sorts: NaN is the largest, equal elements keep their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine.backend import DtypeError, ShapeError

NAN = float("nan")
ROWS = [[3, 1, 2, 1, 3], [0, 0, 1, 0, 1], [5, 4, 3, 2, 1]]
DTYPES = ["bool", "uint8", "int8", "int64", "float16", "bfloat16", "float32", "float64"]


def _pair(values: Any, dtype: str) -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    return gm.tensor(values).to(dtype), torch.tensor(values).to(getattr(torch, dtype))


def _assert_sorted(found: Any, expected: Any) -> None:
    assert found.indices.tolist() == expected.indices.tolist()
    assert found.values.dtype == found[0].dtype
    assert str(found.values.dtype) == str(expected.values.dtype).removeprefix("torch.")
    np.testing.assert_array_equal(found.values.double().numpy(), expected.values.double().numpy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, -1])
def test_equal_elements_keep_their_order(dtype: str, descending: bool, dim: int) -> None:
    ours, peer = _pair(ROWS, dtype)

    _assert_sorted(
        ours.sort(dim, descending=descending),
        peer.sort(dim=dim, descending=descending, stable=True),
    )
    places = peer.argsort(dim=dim, descending=descending, stable=True)
    assert ours.argsort(dim, descending=descending).tolist() == places.tolist()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("descending", [False, True])
def test_nan_is_the_largest(dtype: str, descending: bool) -> None:
    ours, peer = _pair([1.0, NAN, -np.inf, np.inf, NAN, 2.0], dtype)

    _assert_sorted(ours.sort(descending=descending), peer.sort(descending=descending, stable=True))
    found, expected = ours.topk(4, largest=descending), peer.topk(4, largest=descending)
    np.testing.assert_array_equal(found.values.numpy(), expected.values.numpy())


def test_the_first_of_equals_is_among_the_largest() -> None:
    found = gm.tensor([1, 3, 3, 2, 3]).topk(2)

    assert found.values.tolist() == [3, 3]
    assert found.indices.tolist() == [1, 2]
    assert found.indices.dtype == np.int64


def test_gradients_go_to_the_selected_elements() -> None:
    x = gm.tensor([1.0, 5.0, 3.0], requires_grad=True)
    values, places = gm.ops.topk(x, 2)
    (values * gm.tensor([10.0, 1.0])).sum().backward()

    assert x.grad.tolist() == [0.0, 10.0, 1.0]
    assert not places.requires_grad


def test_arguments_that_do_not_fit_are_named() -> None:
    x = gm.ones(2, 3)

    with pytest.raises(IndexError, match="sort: a tensor with 2 axes has no axis 2; use -2 to 1"):
        x.sort(2)
    with pytest.raises(IndexError, match="argsort"):
        x.argsort(-3)
    with pytest.raises(ShapeError, match="topk: k is 4, but axis 1 has 3 elements"):
        x.topk(4)
    with pytest.raises(ShapeError, match="topk: k is -1"):
        x.topk(-1)
    with pytest.raises(DtypeError, match="topk: k is an integer, not float"):
        x.topk(1.0)
    with pytest.raises(DtypeError, match="sort: an axis is an integer, not tuple"):
        x.sort((0, 1))
