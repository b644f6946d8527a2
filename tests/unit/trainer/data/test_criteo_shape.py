import numpy as np

from gradmesh.trainer.data import ClickData, DataConfig, Source, criteo_spec
from gradmesh.trainer.data.criteo_shape import KAGGLE_ROWS, MULTI_HOT
from gradmesh.trainer.metric import auc


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


def test_several_ids_of_a_feature_lie_side_by_side():
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
