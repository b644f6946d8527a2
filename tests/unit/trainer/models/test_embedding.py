import numpy as np
import pytest

from gradmesh.engine.autograd import run_backward
from gradmesh.trainer.models import LocalEmbedding


@pytest.fixture
def embeddings():
    return LocalEmbedding((5, 3), 4)


def test_each_column_reads_its_own_table(embeddings):
    rows = embeddings(np.array([[4, 0], [0, 2]]))

    assert rows.shape == (2, 2, 4)
    np.testing.assert_array_equal(rows.data[0, 0], embeddings.table(0)[4])
    np.testing.assert_array_equal(rows.data[1, 1], embeddings.table(1)[2])


def test_gradients_of_repeated_rows_add_up(embeddings):
    gradients = {}

    run_backward([embeddings(np.array([[1, 0], [1, 2]])).sum()], into=gradients)

    grad = gradients[embeddings.weight]
    assert grad[:, 0].tolist() == [0, 2, 0, 0, 0, 1, 0, 1]


def test_initial_values_keep_within_the_bound():
    weight = LocalEmbedding((100,), 8, bound=0.25).weight.data

    assert abs(weight).max() <= 0.25
    assert abs(weight).max() > 0.2


@pytest.mark.parametrize("ids", [[[5, 0]], [[0, 3]], [[-1, 0]]])
def test_id_outside_its_table_is_refused(embeddings, ids):
    with pytest.raises(IndexError, match=r"\(5, 3\)"):
        embeddings(np.array(ids))


@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 2, 1)])
def test_ids_of_another_shape_are_refused(embeddings, shape):
    with pytest.raises(ValueError, match=r"\[batch, 2\]"):
        embeddings(np.zeros(shape, np.int64))


def test_empty_batch_gives_no_rows(embeddings):
    assert embeddings(np.empty((0, 2), np.int64)).shape == (0, 2, 4)
