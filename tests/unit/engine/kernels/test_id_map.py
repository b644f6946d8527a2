import numpy as np

from gradmesh.engine import kernels


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
