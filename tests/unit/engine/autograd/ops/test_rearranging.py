"""prod, flip, repeat, tile, scatter_add, masked_select and erf: dtypes, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine.autograd import InplaceError
from gradmesh.engine.backend import DtypeError, ShapeError, to_numpy
from gradmesh.engine.backend.cuda import stand_in
from tests.cupy_stand_in import StandInModule

DTYPES = ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
CALLS: dict[str, Any] = {
    "prod": lambda x: x.prod(),
    "prod-dim": lambda x: x.prod(0),
    "flip": lambda x: x.flip(0, 1),
    "repeat": lambda x: x.repeat(2, 1, 2),
    "tile": lambda x: x.tile(3),
    "erf": lambda x: x.erf(),
    "masked-select": lambda x: x.masked_select(x > 1),
}
BIG = 2**53 + 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_values_and_dtypes_equal_torch(name: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    values = np.array([[1, 2, 3], [1, 0, 2]])

    found = CALLS[name](gm.tensor(values).to(dtype))
    expected = CALLS[name](torch.tensor(values).to(getattr(torch, dtype)))

    assert str(found.dtype) == str(expected.dtype).removeprefix("torch.")
    tolerance = {"float64": 1e-12, "float32": 1e-6}.get(str(found.dtype), 1e-3)
    np.testing.assert_allclose(
        found.double().numpy(), expected.double().numpy(), rtol=tolerance, atol=0
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_are_added_in_their_dtype(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    base, source, index = np.array([1, 0, 5]), np.array([2, 100, 3, 1]), np.array([1, 2, 1, 2])

    found = gm.tensor(base).to(dtype).scatter_add(0, gm.tensor(index), gm.tensor(source).to(dtype))
    kind = getattr(torch, dtype)
    expected = torch.tensor(base, dtype=kind).scatter_add(
        0, torch.tensor(index), torch.tensor(source).to(kind)
    )

    assert str(found.dtype) == dtype
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_large_integers_add_exactly(device: str) -> None:
    with stand_in(StandInModule()):
        x, index, source = (
            gm.tensor(v, device=device) for v in ([0, BIG, -1], [2, 1, 2, 1], [BIG, 1, BIG, 2])
        )
        found = to_numpy(x.scatter_add(0, index, source).data)

    assert found.tolist() == [0, BIG + 3, 2 * BIG - 1]


def test_results_are_new_memory() -> None:
    x = gm.tensor([1.0, 2.0])

    for made in (x.flip(0), x.flip(()), x.repeat(1), x.tile(1), x.scatter_add(0, *_nothing())):
        made += 1
    assert x.tolist() == [1.0, 2.0]


def _nothing() -> tuple[Any, Any]:
    return gm.tensor([], dtype="int64"), gm.tensor([], dtype="float32")


def test_a_leaf_refuses_in_place_scatter() -> None:
    x = gm.ones(3, requires_grad=True)

    with pytest.raises(InplaceError):
        x.scatter_add_(0, gm.tensor([0]), gm.ones(1))
    y = gm.zeros(3)
    assert y.scatter_add_(0, gm.tensor([0, 0]), gm.ones(2)) is y
    assert y.tolist() == [2.0, 0.0, 0.0]


def test_arguments_that_do_not_fit_are_named() -> None:
    x, index = gm.ones(2, 3), gm.tensor([[0, 1]])

    with pytest.raises(IndexError, match="prod: a tensor with 2 axes has no axis 2"):
        x.prod(2)
    with pytest.raises(DtypeError, match="prod: an axis is an integer, not tuple"):
        x.prod((0, 1))
    with pytest.raises(ShapeError, match="flip: an axis appears twice"):
        x.flip(0, -2)
    with pytest.raises(TypeError, match="flip: needs"):
        x.flip()
    with pytest.raises(ShapeError, match="repeat: 1 counts for a tensor of shape"):
        x.repeat(2)
    with pytest.raises(ShapeError, match=r"tile: .* negative"):
        x.tile(-1)
    with pytest.raises(DtypeError, match="repeat: a count is an integer, not float"):
        x.repeat(1, 2.0)
    with pytest.raises(DtypeError, match="masked_select: a mask is of bool, not float32"):
        x.masked_select(x)
    with pytest.raises(ShapeError, match="masked_select"):
        x.masked_select(gm.ones(2) > 0)
    with pytest.raises(DtypeError, match="scatter_add: an index is of integers, not float32"):
        x.scatter_add(0, x, x)
    with pytest.raises(DtypeError, match="scatter_add: dtypes float32 and int64 differ"):
        x.scatter_add(0, index, index)
    with pytest.raises(ShapeError, match=r"scatter_add: .* differ in axes"):
        x.scatter_add(0, gm.tensor([0]), x)
    with pytest.raises(ShapeError, match="scatter_add: index"):
        x.scatter_add(0, gm.tensor([[0, 0, 0, 0]]), gm.ones(1, 4))
    with pytest.raises(
        IndexError, match="scatter_add: an index is out of range for axis 0 of length 2"
    ):
        x.scatter_add(0, gm.tensor([[0, 2]]), x)
    with pytest.raises(
        IndexError, match="scatter_add: an index is out of range for axis 1 of length 3"
    ):
        x.scatter_add(1, gm.tensor([[-1]]), x)
    with pytest.raises(IndexError, match="scatter_add: a tensor with 2 axes has no axis 5"):
        x.scatter_add(5, index, x)
