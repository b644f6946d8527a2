import ml_dtypes
import numpy as np
import pytest

from gradmesh.engine import kernels
from gradmesh.engine.kernels import all_finite, finite_copy, gather_columns


def test_gather_into_a_buffer() -> None:
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    out = np.empty((3, 2), np.float32)

    assert kernels.gather(table, np.array([3, 0, 3]), out) is out
    assert out.tolist() == [[6, 7], [0, 1], [6, 7]]


@pytest.mark.parametrize("bad", [-1, 4])
def test_index_outside_is_named_and_changes_nothing(bad: int) -> None:
    table = np.zeros((4, 2), np.float32)
    index = np.array([0, bad])
    rows = np.ones((2, 2), np.float32)

    with pytest.raises(IndexError, match=f"index {bad} at position 1 is outside 4 rows"):
        kernels.gather(table, index)
    with pytest.raises(IndexError):
        kernels.scatter_add(table, index, rows)
    with pytest.raises(IndexError):
        kernels.scatter_sgd(table, index, rows, 0.1)

    assert not table.any()


def test_sums_are_taken_in_order_of_appearance() -> None:
    rng = np.random.default_rng(0)
    inverse = rng.integers(0, 5, 1000)
    rows = rng.normal(size=(1000, 7)).astype(np.float32)

    total = kernels.coalesce(inverse, rows, 5)

    expected = np.zeros((5, 7), np.float32)
    for place, row in zip(inverse, rows, strict=True):
        expected[place] += row
    np.testing.assert_array_equal(total, expected)


def test_scatter_sgd_with_repeated_places() -> None:
    weights = np.ones((3, 2), np.float32)

    kernels.scatter_sgd(weights, np.array([1, 1]), np.ones((2, 2), np.float32), 0.25)

    assert weights.tolist() == [[1, 1], [0.5, 0.5], [1, 1]]


def test_half_precision_rows_add_up() -> None:
    out = np.zeros((2, 3), np.float16)

    kernels.scatter_add(out, np.array([1, 1]), np.ones((2, 3), np.float16))

    assert out.tolist() == [[0, 0, 0], [2, 2, 2]]


@pytest.mark.parametrize("inverse", [[1, 0, 1], [0, 2, 1, 2], [2, 2, 0, 1, 0]])
def test_coalesce_takes_places_in_any_order(inverse: list[int]) -> None:
    rows = np.arange(len(inverse) * 2, dtype=np.float32).reshape(-1, 2) + 1
    expected = np.zeros((max(inverse) + 1, 2), np.float32)
    for place, row in zip(inverse, rows, strict=True):
        expected[place] += row

    out = np.full_like(expected, np.nan)
    np.testing.assert_array_equal(
        kernels.coalesce(np.array(inverse), rows, len(expected), out), expected
    )


def test_rows_from_the_wire_may_be_read_only() -> None:
    ids = np.frombuffer(np.array([4, 4, 1]).tobytes(), dtype=np.int64)
    rows = np.frombuffer(np.ones((3, 2), np.float32).tobytes(), dtype=np.float32).reshape(3, 2)

    unique, inverse = kernels.unique_inverse(ids)

    assert unique.tolist() == [4, 1]
    assert kernels.coalesce(inverse, rows, 2).tolist() == [[2, 2], [1, 1]]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_marked_rows_are_copied_and_the_rest_stays(dtype: type) -> None:
    table = np.arange(8, dtype=dtype).reshape(4, 2)
    out = np.full((5, 2), -1, dtype)

    kernels.copy_marked(table, np.array([3, 0, 3, 2, 1]), np.array([False, True, False, True]), out)

    assert out.tolist() == [[6, 7], [-1, -1], [6, 7], [-1, -1], [2, 3]]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_found(dtype, bad):
    array = np.linspace(-3, 3, 35).reshape(5, 7).astype(dtype)
    assert all_finite(array)
    assert all_finite(array.T)

    for place in (0, 17, 34):
        spoiled = array.copy()
        spoiled.reshape(-1)[place] = bad
        assert not all_finite(spoiled)
        assert not all_finite(spoiled.T)


def test_an_empty_array_is_finite():
    assert all_finite(np.empty((0, 4), np.float32))


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


def test_columns_are_written_at_their_offsets():
    matrices = [np.full((2, 3), number, np.float32) for number in (1, 2)]
    out = np.zeros((4, 5, 3), np.float32)

    gather_columns(matrices, [0, 0], np.zeros((2, 4), np.int64), out, 2)

    assert out[:, :, 0].tolist() == [[0, 0, 1, 2, 0]] * 4


@pytest.mark.parametrize(("rows", "at"), [(4, 2), (4, -1), (3, 0), (5, 0)])
def test_no_memory_outside_the_columns_is_written(rows, at):
    matrices = [np.zeros((2, 3), np.float32)] * 2

    with pytest.raises(IndexError):
        gather_columns(matrices, [0, 0], np.zeros((2, 4), np.int64), np.empty((rows, 3, 3)), at)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("bad", [None, np.nan, np.inf, -np.inf])
def test_a_copy_is_made_only_of_finite_numbers(dtype, bad):
    array = np.arange(24).astype(dtype).reshape(4, 6)
    if bad is not None:
        array[3, 5] = bad

    for given in (array, array[::-1], array.T):
        copy = finite_copy(given)

        if bad is not None:
            assert copy is None
        else:
            np.testing.assert_array_equal(copy, given)
            assert not np.may_share_memory(copy, given)
