import numpy as np
import pytest

from gradmesh.trainer.data.power_law import PowerLaw


@pytest.mark.parametrize("rows", [1, 2, 3, 1000, 4096, 10**7])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 1.05, 1.2, 3.0])
def test_ids_stay_within_the_rows(rows, alpha):
    uniform = np.concatenate([np.linspace(0, 1, 1001)[:-1], [np.nextafter(1.0, 0.0)]])[:, None]

    ids = PowerLaw([rows], alpha).ids(uniform)

    assert ids.min() >= 0
    assert ids.max() < rows


def test_frequencies_follow_the_power():
    rng = np.random.default_rng(0)

    ids = PowerLaw([1000], 1.05).ids(rng.random((1_000_000, 1)))

    counts = np.sort(np.bincount(ids[:, 0], minlength=1000))[::-1]
    edges = np.arange(1, 1002, dtype=np.float64) ** -0.05
    expected = -np.diff(edges) / (edges[0] - edges[-1]) * 1_000_000
    np.testing.assert_allclose(counts[:20], expected[:20], rtol=0.05)
    assert (counts > 0).all()


def test_alpha_zero_is_uniform():
    rng = np.random.default_rng(0)

    ids = PowerLaw([100], 0.0).ids(rng.random((1_000_000, 1)))

    np.testing.assert_allclose(np.bincount(ids[:, 0]), 10_000, rtol=0.05)


def test_hot_ids_are_scattered_over_the_table():
    rng = np.random.default_rng(0)

    ids = PowerLaw([4000], 1.05).ids(rng.random((200_000, 1)))

    halves = np.bincount(ids[:, 0] // 2000) / 200_000
    assert abs(halves[0] - 0.5) < 0.1


def test_features_have_their_own_rows():
    ids = PowerLaw([3, 50], 1.05).ids(np.random.default_rng(0).random((1000, 2)))

    assert np.unique(ids[:, 0]).tolist() == [0, 1, 2]
    assert ids[:, 1].max() > 3


@pytest.mark.parametrize(("rows", "alpha"), [([0], 1.0), ([5], -1.0)])
def test_senseless_laws_are_refused(rows, alpha):
    with pytest.raises(ValueError, match="rows"):
        PowerLaw(rows, alpha)
