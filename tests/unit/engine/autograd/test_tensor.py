from pathlib import Path

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine.autograd import ops
from gradmesh.engine.backend import DtypeError, ShapeError


def test_python_numbers_become_float32_and_int64() -> None:
    assert ag.tensor([1.0]).dtype == np.float32
    assert ag.tensor([1]).dtype == np.int64
    assert ag.tensor([True]).dtype == np.bool_
    assert ag.tensor(np.zeros(1)).dtype == np.float64


def test_tensor_copies_and_from_numpy_shares() -> None:
    array = np.zeros(2, np.float32)
    copied, shared = ag.tensor(array), ag.from_numpy(array)
    array[0] = 1

    assert copied.tolist() == [0.0, 0.0]
    assert shared.tolist() == [1.0, 0.0]


def test_detach_shares_memory_and_leaves_the_graph() -> None:
    x = ag.tensor([1.0], requires_grad=True)
    y = (x * 2).detach()

    assert not y.requires_grad
    assert y.is_leaf


def test_integers_carry_no_gradient() -> None:
    with pytest.raises(DtypeError, match="int64"):
        ag.tensor([1], requires_grad=True)


def test_numpy_of_a_recorded_tensor_asks_for_detach() -> None:
    with pytest.raises(ag.GradientError, match="detach"):
        ag.tensor([1.0], requires_grad=True).numpy()


def test_numpy_array_on_the_left_yields_a_tensor() -> None:
    total = np.ones(2, np.float32) + ag.tensor([1.0, 2.0])

    assert isinstance(total, ag.Tensor)


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ShapeError, match=r"add: shapes \(2,\) and \(3,\)"):
        ag.ones(2) + ag.ones(3)
    with pytest.raises(ShapeError, match="matmul"):
        ag.ones(2, 3) @ ag.ones(2, 3)
    with pytest.raises(ShapeError, match="reshape"):
        ag.ones(2, 3).reshape(4)
    with pytest.raises(ShapeError, match="cat"):
        ops.cat([ag.ones(2, 3), ag.ones(3, 2)])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("float32", "float64", "float64"),
        ("float16", "float32", "float32"),
        ("float16", "bfloat16", "float32"),
        ("bfloat16", "float32", "float32"),
        ("int64", "float32", "float32"),
        ("int64", "float16", "float16"),
        ("bool", "int8", "int8"),
        ("uint8", "int8", "int16"),
    ],
)
def test_promotion_follows_torch(first: str, second: str, expected: str) -> None:
    total = ag.ones(2, dtype=first) + ag.ones(2, dtype=second)

    assert str(total.dtype) == expected


def test_python_scalar_does_not_widen() -> None:
    assert (ag.ones(1, dtype="float16") * 2.5).dtype == np.float16
    assert (ag.ones(1, dtype="int32") * 2.5).dtype == np.float32
    assert (ag.ones(1, dtype="int32") / 2).dtype == np.float32
    assert (ag.ones(1, dtype="int32") * 2).dtype == np.int32


def test_gradient_has_the_dtype_of_its_leaf() -> None:
    x = ag.ones(2, dtype="float16", requires_grad=True)
    y = ag.ones(2, dtype="float64", requires_grad=True)

    (x * y).sum().backward()

    assert x.grad.dtype == np.float16
    assert y.grad.dtype == np.float64


def test_repr_shows_what_matters() -> None:
    x = ag.tensor([1.5], requires_grad=True)

    assert repr(x) == "tensor([1.5], requires_grad=True)"
    assert "grad_fn=<Mul>" in repr(x * 2)


def test_mapped_memory_mixes_with_plain_arrays(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "rows", dtype=np.float32, mode="w+", shape=(2, 3))
    mapped[...] = 1

    total = ag.from_numpy(mapped) + ag.ones(2, 3)

    assert total.tolist() == [[2.0] * 3] * 2
