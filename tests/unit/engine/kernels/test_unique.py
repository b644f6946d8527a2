import numpy as np

from gradmesh.engine import kernels


def test_unique_ids_come_in_order_of_first_appearance() -> None:
    unique, inverse = kernels.unique_inverse(np.array([7, -3, 7, 0, -3]))

    assert unique.tolist() == [7, -3, 0]
    assert inverse.tolist() == [0, 1, 0, 2, 1]


def test_no_ids() -> None:
    unique, inverse = kernels.unique_inverse(np.zeros(0, np.int64))

    assert len(unique) == 0
    assert len(inverse) == 0


def test_many_ids_agree_with_numpy() -> None:
    ids = np.random.default_rng(0).zipf(1.2, 20_000).astype(np.int64) * 1024

    unique, inverse = kernels.unique_inverse(ids)

    np.testing.assert_array_equal(unique[inverse], ids)
    np.testing.assert_array_equal(np.sort(unique), np.unique(ids))
