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


def test_ids_get_slots_in_order_of_insertion() -> None:
    ids = kernels.IdMap()

    assert ids.insert(np.array([9, 4, 9])).tolist() == [0, 1, 0]
    assert ids.find(np.array([4, 5, 9])).tolist() == [1, -1, 0]
    assert len(ids) == 2


def test_map_grows_and_keeps_its_slots() -> None:
    rng = np.random.default_rng(0)
    ids = kernels.IdMap(4)
    keys = rng.permutation(10_000) * 64 - 5000
    for part in np.split(keys, 100):
        ids.insert(part)

    np.testing.assert_array_equal(ids.find(keys), np.arange(10_000))
    np.testing.assert_array_equal(ids.ids(), keys)
