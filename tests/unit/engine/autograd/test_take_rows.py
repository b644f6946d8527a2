import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine.autograd.ops import take_rows
from gradmesh.engine.backend import ShapeError


def test_rows_already_taken_are_recorded_as_if_taken_here():
    index = np.array([[1, 0], [1, 2]])
    found = []
    for taken in (None, "given"):
        rows = ag.Tensor(np.arange(6.0).reshape(3, 2), requires_grad=True)
        picked = take_rows(rows, index, None if taken is None else rows.data[index])
        (picked * ag.Tensor(np.arange(8.0).reshape(2, 2, 2))).sum().backward()
        found.append((picked.data, rows.grad.data))

    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_adopted_rows_must_have_the_expected_shape():
    with pytest.raises(ShapeError, match="take_rows"):
        take_rows(ag.ones(3, 2), np.array([1, 0]), np.ones((3, 2)))
