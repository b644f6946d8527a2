import sys

import numpy as np
import pytest

from gradmesh.engine.autograd import as_tensor, run_backward
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn.functional import binary_cross_entropy_with_logits
from gradmesh.engine.optim import Adagrad
from gradmesh.sdk.process.config import load
from gradmesh.sdk.process.setting import ConfigError
from gradmesh.trainer.data import ClickData, ClickSpec, Fields
from gradmesh.trainer.metrics import auc
from gradmesh.trainer.models import LocalEmbedding, ModelConfig, build_model, row_dim
from gradmesh.trainer.models.config import MODEL_NAMES

ROWS = (40, 30, 20)


def build(name, dense=3, hots=None, seed=0, **options):
    config = ModelConfig(name=name, dim=4, bottom=(8,), top=(16,), **options)
    generator = Generator(seed)
    embeddings = LocalEmbedding(ROWS, row_dim(config), hots=hots, bound=0.05, generator=generator)
    return build_model(config, Fields(dense, ROWS, hots), embeddings, generator)


@pytest.mark.parametrize("name", MODEL_NAMES)
@pytest.mark.parametrize("dense", [0, 3])
def test_every_parameter_takes_part(name, dense):
    model = build(name, dense)
    rng = np.random.default_rng(0)
    ids = np.stack([rng.integers(0, n, 7) for n in ROWS], axis=1)
    gradients = {}

    scores = model(rng.standard_normal((7, dense)).astype(np.float32), ids)
    run_backward([scores.sum()], into=gradients)

    assert scores.shape == (7,)
    assert set(gradients) == set(model.parameters())


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_every_model_learns(name):
    data = ClickData(ClickSpec(rows=ROWS, dense_features=3))
    model = build(name)
    optimizer = Adagrad(model.parameters(), lr=0.1)

    for step in range(150):
        batch = data.batch("train", step, 256)
        scores = model(batch.dense, batch.ids)
        loss = binary_cross_entropy_with_logits(scores, as_tensor(batch.labels))
        gradients = {}
        run_backward([loss], into=gradients)
        optimizer.step(gradients)

    test = data.batch("test", 0, 10_000)
    best = auc(test.labels, test.best)
    # A product of two towers cannot represent every sum of effects.
    slack = 0.08 if name == "two-tower" else 0.04
    assert auc(test.labels, model(test.dense, test.ids).data) > best - slack


def test_several_ids_of_a_feature_are_summed():
    pooled, plain = build("dlrm", hots=(1, 2, 1)), build("dlrm")
    ids = np.array([[5, 1, 2, 7], [6, 3, 3, 0]])
    rows = pooled.embeddings(ids)

    assert rows.shape == (2, 3, 4)
    table = pooled.embeddings.table(1)
    np.testing.assert_allclose(rows.data[0, 1], table[1] + table[2], rtol=1e-6)
    np.testing.assert_allclose(rows.data[1, 1], 2 * table[3], rtol=1e-6)
    np.testing.assert_array_equal(
        rows.data[:, [0, 2]], plain.embeddings(ids[:, [0, 1, 3]]).data[:, [0, 2]]
    )


def test_two_tower_scores_items_apart_from_users():
    model = build("two-tower", item_features=(1, 2))
    dense = np.zeros((2, 3), np.float32)
    dense[1] = 1

    with_first = model(dense, np.array([[1, 2, 3], [1, 2, 3]])).data
    swapped = model(dense[::-1].copy(), np.array([[1, 2, 3], [1, 2, 3]])).data

    np.testing.assert_allclose(with_first, swapped[::-1], rtol=1e-6)
    with pytest.raises(ConfigError, match=r"model.item_features: .*one of 0 … 2"):
        build("two-tower", item_features=(3,))


@pytest.mark.parametrize("name", ["dlmr", "DLRM", "a:b:c", "os.path", ":x"])
def test_unknown_model_is_refused_with_the_names(name):
    with pytest.raises(ConfigError, match=r"model.name: expected one of dlrm, dcnv2, wide-deep"):
        load([ModelConfig], flags={"model.name": name})


def test_user_defined_model(tmp_path, monkeypatch):
    (tmp_path / "models_of_tests.py").write_text(
        "import gradmesh as gm\n"
        "class Sum(gm.nn.Module):\n"
        "    def __init__(self, embeddings):\n"
        "        super().__init__()\n"
        "        self.embeddings = embeddings\n"
        "    def forward(self, dense, ids):\n"
        "        return self.embeddings(ids).sum(dim=2).sum(dim=1)\n"
        "def build(embeddings, fields, config, generator):\n"
        "    assert fields.features == 3 and config.dim == 4\n"
        "    return Sum(embeddings)\n"
        "def wrong(*args):\n"
        "    return 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert build("models_of_tests:build")(None, np.zeros((2, 3), np.int64)).shape == (2,)
        with pytest.raises(ConfigError, match=r"gave int, which is not a gm.nn.Module"):
            build("models_of_tests:wrong")
        with pytest.raises(ConfigError, match=r"cannot be imported: .*PYTHONPATH"):
            build("models_of_tests:gone")
    finally:
        sys.modules.pop("models_of_tests", None)
