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


def test_repr_shows_values_and_graph() -> None:
    x = ag.tensor([1.5], requires_grad=True)

    assert repr(x) == "tensor([1.5], requires_grad=True)"
    assert "grad_fn=<Mul>" in repr(x * 2)


def test_mapped_memory_mixes_with_plain_arrays(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "rows", dtype=np.float32, mode="w+", shape=(2, 3))
    mapped[...] = 1

    total = ag.from_numpy(mapped) + ag.ones(2, 3)

    assert total.tolist() == [[2.0] * 3] * 2


def test_comparisons_give_tensors_of_bool() -> None:
    x, y = ag.tensor([1.0, 2.0]), ag.tensor([2.0, 2.0])

    assert (x == y).tolist() == (x >= y).tolist() == [False, True]
    assert (x != y).tolist() == (x < y).tolist() == [True, False]
    assert (x <= 1).tolist() == [True, False]
    assert (x > 1).tolist() == [False, True]


def test_indices_and_predicates() -> None:
    x = ag.tensor([[1.0, 5.0], [float("nan"), 0.0]])

    assert x[0].argmin().item() == 0
    assert x[:1].argmax(dim=1).tolist() == [1]
    assert x.isnan().tolist() == [[False, False], [True, False]]
    assert x.isnan().any(dim=1).tolist() == [False, True]
    assert not (x > 0).all()


def test_numbers_out_of_a_tensor() -> None:
    x = ag.tensor([[3]])

    assert (int(x), float(x), bool(x), x.item(), [5, 6, 7, 8][ag.tensor(3)]) == (3, 3.0, True, 3, 8)
    assert (x.size(), x.size(1), x.dim(), x.numel(), x.element_size()) == ((1, 1), 1, 2, 1, 8)
    assert len(x) == 1
    with pytest.raises(TypeError, match="without axes"):
        len(ag.tensor(1.0))


def test_casts_return_the_tensor_itself_where_nothing_changes() -> None:
    x = ag.tensor([1.5])

    assert x.float() is x
    assert x.cpu() is x
    assert x.contiguous() is x
    assert x.double().dtype == np.float64
    assert x.long().tolist() == [1]


def test_layers_refuse_shapes_and_dtypes_by_name() -> None:
    weight = ag.ones(4, 3)

    with pytest.raises(ShapeError, match=r"linear: input \(2, 5\) does not fit weight \(4, 3\)"):
        ops.linear(ag.ones(2, 5), weight)
    with pytest.raises(ShapeError, match=r"linear: bias \(3,\)"):
        ops.linear(ag.ones(2, 3), weight, ag.ones(3))
    with pytest.raises(DtypeError, match="linear: input is float64, weight is float32"):
        ops.linear(ag.ones(2, 3, dtype="float64"), weight)
    with pytest.raises(ShapeError, match="conv2d"):
        ops.conv2d(ag.ones(1, 2, 5, 5), ag.ones(3, 4, 3, 3))
    with pytest.raises(ShapeError, match="conv2d"):
        ops.conv2d(ag.ones(2, 5, 5), ag.ones(3, 2, 3, 3))
    with pytest.raises(DtypeError, match="conv2d"):
        ops.conv2d(ag.ones(1, 2, 5, 5, dtype="float64"), ag.ones(3, 2, 3, 3))
    with pytest.raises(ShapeError, match="layer_norm"):
        ops.layer_norm(ag.ones(2, 3), (4,))
    with pytest.raises(ShapeError, match="dot_interaction"):
        ops.dot_interaction(ag.ones(2, 3))


def test_a_result_keeps_its_gradient_switch() -> None:
    y = ag.ones(1, requires_grad=True) * 2

    with pytest.raises(ag.GradientError, match="detach"):
        y.requires_grad = False


def test_hooks_on_tensors_without_gradient_are_refused() -> None:
    with pytest.raises(ag.GradientError, match="requires a gradient"):
        ag.ones(1).register_hook(lambda grad: None)
    with pytest.raises(ag.GradientError, match="register_hook"):
        (ag.ones(1, requires_grad=True) * 2).register_post_accumulate_grad_hook(lambda leaf: None)


def test_double_backward_is_refused_by_name() -> None:
    x = ag.ones(1, requires_grad=True)

    with pytest.raises(ag.GradientError, match="double backward"):
        (x * x).backward(create_graph=True)
    with pytest.raises(ag.GradientError, match="double backward"):
        ag.grad(x * x, [x], create_graph=True)
    assert x.grad is None


def test_a_tensor_without_axes_is_not_iterated() -> None:
    with pytest.raises(TypeError, match="without axes"):
        list(ag.tensor(1.0))

    assert [x.item() for x in ag.tensor([1.0, 2.0])] == [1, 2]


def test_values_that_are_not_tensors_are_refused_by_kind() -> None:
    with pytest.raises(TypeError, match="not list"):
        ops.add(ag.tensor([1.0]), [1.0])
    with pytest.raises(TypeError, match="not float"):
        ops.exp(1.0)


def test_sums_of_half_precision_are_rounded_once() -> None:
    x = ag.tensor(np.full(70_000, 1.0, np.float16))

    assert x.mean().item() == 1
    assert (x[:5000] * 0.1).sum().item() == pytest.approx(500, rel=1e-3)
