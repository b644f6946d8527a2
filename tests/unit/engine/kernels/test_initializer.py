import numpy as np

from gradmesh.engine import kernels


def test_rows_depend_on_seed_and_id_alone() -> None:
    ids = np.arange(100)
    whole = np.empty((100, 8), np.float32)
    kernels.init_uniform(whole, ids, 3, -0.1, 0.1)

    for shard in range(3):
        mine = ids[ids % 3 == shard]
        part = np.empty((len(mine), 8), np.float32)
        kernels.init_uniform(part, mine, 3, -0.1, 0.1)
        np.testing.assert_array_equal(part, whole[mine])


def test_uniform_fills_its_range() -> None:
    out = np.empty((1000, 64), np.float64)
    kernels.init_uniform(out, np.arange(1000), 1, -1.0, 3.0)

    assert out.min() >= -1.0
    assert out.max() < 3.0
    assert abs(out.mean() - 1.0) < 0.02
    assert len(np.unique(out)) == out.size


def test_normal_has_its_moments_and_seeds_differ() -> None:
    out = np.empty((1000, 64), np.float32)
    other = np.empty_like(out)
    kernels.init_normal(out, np.arange(1000), 1, 0.5, 2.0)
    kernels.init_normal(other, np.arange(1000), 2, 0.5, 2.0)

    assert abs(out.mean() - 0.5) < 0.03
    assert abs(out.std() - 2.0) < 0.03
    assert abs(np.corrcoef(out.ravel(), other.ravel())[0, 1]) < 0.02
