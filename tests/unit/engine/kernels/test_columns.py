"""Rows of several matrices side by side."""

import ml_dtypes
import numpy as np
import pytest

from gradmesh.engine.kernels import gather_columns


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_each_column_has_the_rows_of_its_matrix(dtype):
    rng = np.random.default_rng(0)
    matrices = [rng.standard_normal((size, 5)).astype(dtype) for size in (3, 1, 8)]
    matrices[1].flags.writeable = False
    firsts = [0, 3, 4]
    index = np.stack([rng.integers(0, len(m), 20) for m in matrices])

    found = gather_columns(matrices, firsts, index + np.array(firsts)[:, None])

    assert found.dtype == dtype
    for place, matrix in enumerate(matrices):
        np.testing.assert_array_equal(found[:, place], matrix[index[place]])


@pytest.mark.parametrize("bad", [-1, 3])
def test_no_memory_outside_the_matrices_is_read(bad):
    matrices = [np.zeros((3, 2)), np.zeros((3, 2))]

    with pytest.raises(IndexError):
        gather_columns(matrices, [0, 0], np.array([[0, 1], [bad, 0]]))


def test_columns_go_where_they_are_wanted():
    matrices = [np.full((2, 3), number, np.float32) for number in (1, 2)]
    out = np.zeros((4, 5, 3), np.float32)

    gather_columns(matrices, [0, 0], np.zeros((2, 4), np.int64), out, 2)

    assert out[:, :, 0].tolist() == [[0, 0, 1, 2, 0]] * 4


@pytest.mark.parametrize(("rows", "at"), [(4, 2), (4, -1), (3, 0), (5, 0)])
def test_no_memory_outside_the_columns_is_written(rows, at):
    matrices = [np.zeros((2, 3), np.float32)] * 2

    with pytest.raises(IndexError):
        gather_columns(matrices, [0, 0], np.zeros((2, 4), np.int64), np.empty((rows, 3, 3)), at)
