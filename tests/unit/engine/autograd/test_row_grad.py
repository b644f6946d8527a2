import numpy as np
import pytest

from gradmesh.engine.autograd import RowGrad
from gradmesh.engine.autograd.row_grad import add_grads
from gradmesh.engine.backend import ShapeError


def example() -> RowGrad:
    return RowGrad(np.array([5, 1, 5]), np.arange(6, dtype=np.float32).reshape(3, 2), 7)


def test_coalesce_sums_in_order_of_appearance() -> None:
    merged = example().coalesce()

    assert merged.ids.tolist() == [5, 1]
    assert merged.rows.tolist() == [[4.0, 6.0], [2.0, 3.0]]
    assert merged.coalesce() is merged


def test_dense_form_holds_the_same_sums() -> None:
    dense = example().to_dense()

    assert dense.shape == (7, 2)
    assert dense[5].tolist() == [4.0, 6.0]
    assert dense.sum() == 15.0


def test_sums_of_rows_and_dense() -> None:
    both = add_grads(example(), example())
    mixed = add_grads(np.ones((7, 2), np.float32), example())

    assert isinstance(both, RowGrad)
    np.testing.assert_array_equal(both.to_dense(), 2 * example().to_dense())
    np.testing.assert_array_equal(mixed, 1 + example().to_dense())


def test_ids_and_rows_must_fit() -> None:
    with pytest.raises(ShapeError, match="2 ids for 3"):
        RowGrad(np.array([1, 2]), np.zeros((3, 2)), 5)
