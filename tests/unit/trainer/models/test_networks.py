import numpy as np
import pytest

from gradmesh.engine.autograd import as_tensor, no_grad, run_backward
from gradmesh.engine.backend import Generator, ShapeError
from gradmesh.engine.nn.functional import binary_cross_entropy_with_logits
from gradmesh.engine.optim import SGD
from gradmesh.trainer.data import ClickData, ClickSpec
from gradmesh.trainer.metrics import auc
from gradmesh.trainer.models import DLRM, LocalEmbedding


def build(rows=(20, 10, 5), dim=4, dense_features=3, seed=0):
    generator = Generator(seed)
    return DLRM(
        LocalEmbedding(rows, dim, generator=generator),
        dense_features=dense_features,
        features=len(rows),
        dim=dim,
        bottom=(6,),
        top=(8, 5),
        generator=generator,
    )


def by_hand(model, dense, ids):
    """Compute the scores with plain numpy, sample by sample."""
    weights = {name: p.data for name, p in model.named_parameters()}

    def layers(part, x, last_relu):
        names = sorted(n for n in weights if n.startswith(part) and n.endswith("weight"))
        for place, name in enumerate(names):
            x = weights[name] @ x + weights[name.replace("weight", "bias")]
            if last_relu or place < len(names) - 1:
                x = np.maximum(x, 0)
        return x

    scores = []
    for numbers, places in zip(dense, ids, strict=True):
        vector = layers("bottom", numbers, True)
        rows = [model.embeddings.table(f)[i] for f, i in enumerate(places)]
        vectors = [vector, *rows]
        pairs = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
        scores.append(layers("top", np.concatenate([vector, pairs]), False)[0])
    return np.array(scores)


@pytest.fixture
def samples():
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((7, 3)).astype(np.float32)
    return dense, np.stack([rng.integers(0, n, 7) for n in (20, 10, 5)], axis=1)


def test_scores_are_those_computed_by_hand(samples):
    model = build()

    scores = model(*samples)

    assert scores.shape == (7,)
    np.testing.assert_allclose(scores.data, by_hand(model, *samples), rtol=1e-4, atol=1e-5)


def test_same_seed_gives_the_same_model_and_another_seed_another(samples):
    first, same, other = build(seed=1)(*samples), build(seed=1)(*samples), build(seed=2)(*samples)

    assert first.data.tobytes() == same.data.tobytes()
    assert first.data.tobytes() != other.data.tobytes()


def test_every_parameter_gets_a_gradient(samples):
    model = build()
    gradients = {}

    run_backward([model(*samples).sum()], into=gradients)

    assert set(gradients) == set(model.parameters())


def test_embeddings_of_another_dim_are_refused(samples):
    model = DLRM(LocalEmbedding((20, 10, 5), 8), dense_features=3, features=3, dim=4)

    with pytest.raises(ShapeError):
        model(*samples)


def test_small_model_reaches_most_of_the_auc_of_the_teacher():
    spec = ClickSpec(rows=(100, 50, 20), dense_features=4)
    data = ClickData(spec)
    model = build(spec.rows, dim=8, dense_features=4)
    dense = [p for name, p in model.named_parameters() if not name.startswith("embeddings")]
    optimizer = SGD([{"params": dense}, {"params": [model.embeddings.weight], "lr": 20.0}], lr=0.5)

    for step in range(600):
        batch = data.batch("train", step, 512)
        loss = binary_cross_entropy_with_logits(
            model(batch.dense, batch.ids), as_tensor(batch.labels)
        )
        gradients = {}
        run_backward([loss], into=gradients)
        optimizer.step(gradients)

    held_out = data.batch("test", 0, 20_000)
    with no_grad():
        scores = model(held_out.dense, held_out.ids).data
    best = auc(held_out.labels, held_out.best)
    assert best - 0.02 < auc(held_out.labels, scores) < best + 0.005
