import numpy as np
import pytest

from gradmesh.trainer.data import ClickData, DataConfig, Source, criteo_spec
from gradmesh.trainer.data.click_spec import KAGGLE_ROWS, MULTI_HOT, PowerLaw
from gradmesh.trainer.metrics import auc


def test_shape_is_criteos():
    spec = criteo_spec(scale=0.01)
    batch = ClickData(spec).batch("train", 0, 2000)

    assert len(KAGGLE_ROWS) == 26
    assert sum(KAGGLE_ROWS) > 9_000_000
    assert spec.rows[2] == 25940
    assert batch.dense.shape == (2000, 13)
    assert batch.dense.min() > 0
    assert batch.ids.shape == (2000, 26)
    assert (batch.ids < np.array(spec.rows)).all()
    assert abs(batch.labels.mean() - 0.25) < 0.05
    assert auc(batch.labels, batch.best) > 0.75


def test_clicks_may_be_as_rare_as_in_the_terabyte():
    settings = DataConfig(shape="criteo", scale=0.01, base_rate=0.03)

    with Source(settings, 0).blocks("train", 4000) as blocks:
        labels = np.concatenate([blocks.read(0, i).samples.labels for i in range(5)])

    assert 0.02 < labels.mean() < 0.04


def test_whole_cardinalities_cost_the_teacher_little_memory():
    batch = ClickData(criteo_spec(alpha=0)).batch("train", 0, 4000)

    assert batch.ids[:, 2].max() > 2_000_000


def test_several_ids_of_a_feature_are_adjacent_columns():
    spec = criteo_spec(scale=0.01, multi_hot=True, alpha=1.2)
    data = ClickData(spec)
    batch = data.batch("train", 0, 500)

    assert batch.ids.shape == (500, sum(MULTI_HOT))
    columns = data.fields.columns
    assert data.fields.pooled
    for feature, rows in enumerate(spec.rows):
        part = batch.ids[:, columns[feature] : columns[feature + 1]]
        assert part.shape[1] == MULTI_HOT[feature]
        assert part.max() < rows
    # Columns of one feature share their hot ids.
    hot = [np.bincount(batch.ids[:, c]).argmax() for c in range(columns[20], columns[21])]
    assert len(set(hot)) == 1
    assert auc(batch.labels, batch.best) > 0.7


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
def test_invalid_distributions_are_refused(rows, alpha):
    with pytest.raises(ValueError, match="rows"):
        PowerLaw(rows, alpha)
