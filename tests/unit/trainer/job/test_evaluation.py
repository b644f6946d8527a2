from types import SimpleNamespace

import numpy as np
import pytest

from gradmesh.engine.backend import Generator
from gradmesh.trainer.data import ClickData, ClickSpec
from gradmesh.trainer.data.click import ClickBlocks, sigmoid
from gradmesh.trainer.data.samples import BadLine, BadLines, Block
from gradmesh.trainer.errors import DataError
from gradmesh.trainer.job.evaluation import evaluate
from gradmesh.trainer.metrics import auc, log_loss
from gradmesh.trainer.models import DLRM, LocalEmbedding
from gradmesh.trainer.process_group import LocalProcessGroup
from tests.own_process import peak_bytes

SPEC = ClickSpec(rows=(30, 10), dense_features=3)


@pytest.fixture(scope="module")
def data():
    return ClickData(SPEC)


@pytest.fixture
def model():
    generator = Generator(0)
    embeddings = LocalEmbedding(SPEC.rows, 4, generator=generator)
    return DLRM(embeddings, dense_features=3, features=2, dim=4, generator=generator)


def test_figures_are_those_of_all_held_out_batches(model, data):
    blocks = ClickBlocks(data, "test", 200)
    figures = evaluate(model, blocks, LocalProcessGroup(), 5, 200)
    streamed = evaluate(model, blocks, LocalProcessGroup(), 5, 200, streaming=True)

    batches = [data.batch("test", index, 200) for index in range(5)]
    labels = np.concatenate([batch.labels for batch in batches])
    guesses = sigmoid(np.concatenate([model(b.dense, b.ids).data for b in batches]))
    best = np.concatenate([batch.best for batch in batches])
    assert figures["auc"] == auc(labels, guesses)
    assert figures["best_auc"] == auc(labels, best)
    assert figures["log_loss"] == log_loss(labels, guesses)
    assert figures["best_log_loss"] == log_loss(labels, best)
    assert figures["auc"] < figures["best_auc"]
    assert streamed == pytest.approx(figures, rel=2e-3)
    with pytest.raises(DataError, match="eval_batches"):
        evaluate(model, blocks, LocalProcessGroup(), 0, 200)


def stream(batches):
    evaluate(
        lambda dense, ids: SimpleNamespace(data=dense[:, 0]),
        ClickBlocks(ClickData(SPEC), "test", 500),
        LocalProcessGroup(),
        batches,
        500,
        streaming=True,
    )


def test_streaming_keeps_no_scores(in_own_process):
    in_own_process(stream, 2)  # one-time allocations
    few, many = in_own_process(peak_bytes, stream, 20), in_own_process(peak_bytes, stream, 200)

    # A hundred thousand samples have 1.2 MB of scores.
    assert many - few < 600_000


def test_bad_held_out_lines_count_once_and_have_a_limit(model, data):
    class Damaged:
        fields = data.fields

        def read(self, epoch, block):
            if block > 2:
                return None
            bad = BadLine("clicks.txt", 10 + block, "nonsense")
            return Block(data.batch("test", block, 100), (bad,))

        def count(self):
            return 300

    bad_lines = BadLines(3)
    for _ in range(2):
        evaluate(model, Damaged(), LocalProcessGroup(), 0, 100, bad_lines=bad_lines)

    assert bad_lines.count == 3
    with pytest.raises(DataError, match=r"clicks.txt:12: nonsense; that is bad line number 3"):
        evaluate(model, Damaged(), LocalProcessGroup(), 0, 100, bad_lines=BadLines(2))
