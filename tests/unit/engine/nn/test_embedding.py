from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn, optim
from gradmesh.engine.autograd import RowGrad
from gradmesh.engine.backend import DtypeError, ShapeError

IDS = np.array([[3, 1, 3], [0, 3, 2]])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_sparse_gradient_equals_the_dense_one(mode: str) -> None:
    dense = nn.EmbeddingBag(5, 4, mode=mode, padding_idx=2)
    sparse = nn.EmbeddingBag(5, 4, mode=mode, padding_idx=2, sparse=True)
    sparse.load_state_dict(dense.state_dict())

    (dense(ag.tensor(IDS)) ** 2).sum().backward()
    (sparse(ag.tensor(IDS)) ** 2).sum().backward()

    assert isinstance(sparse.weight.grad, RowGrad)
    assert 2 not in sparse.weight.grad.ids
    np.testing.assert_array_equal(sparse.weight.grad.to_dense(), dense.weight.grad.data)


def test_two_lookups_add_their_row_gradients() -> None:
    dense, sparse = nn.Embedding(5, 4), nn.Embedding(5, 4, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    for layer in (dense, sparse):
        (layer(ag.tensor(IDS)).sum() + (layer(ag.tensor([1, 1])) * 2).sum()).backward()

    assert isinstance(sparse.weight.grad, RowGrad)
    np.testing.assert_array_equal(sparse.weight.grad.to_dense(), dense.weight.grad.data)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "peer_name", "options"),
    [
        ("SGD", "SGD", {}),
        ("Adagrad", "Adagrad", {}),
        # torch adds eps before the correction here and after it in Adam; so tiny it is the same.
        ("Adam", "SparseAdam", {"eps": 1e-20}),
    ],
)
def test_sparse_training_equals_torch(
    name: str, peer_name: str, options: dict[str, Any], dtype: str, assert_parity: Any
) -> None:
    torch = pytest.importorskip("torch")
    mine = nn.EmbeddingBag(50, 8, mode="sum", sparse=True, dtype=dtype)
    peer = torch.nn.EmbeddingBag(50, 8, mode="sum", sparse=True, dtype=getattr(torch, dtype))
    peer.load_state_dict({"weight": torch.tensor(mine.weight.data.copy())})
    ours = getattr(optim, name)(mine.parameters(), lr=0.01, **options)
    theirs = getattr(torch.optim, peer_name)(list(peer.parameters()), lr=0.01, **options)
    rng = np.random.default_rng(0)

    for _ in range(10):
        ids = rng.integers(0, 50, (6, 5))
        for layer, optimizer, batch in (
            (mine, ours, ag.tensor(ids)),
            (peer, theirs, torch.tensor(ids)),
        ):
            optimizer.zero_grad()
            (layer(batch) ** 2).sum().backward()
            optimizer.step()

    assert_parity(mine.weight.data, peer.weight)


def test_id_outside_the_table_is_named() -> None:
    with pytest.raises(IndexError, match="index 5 at position 1 is outside 5 rows"):
        nn.Embedding(5, 2)(ag.tensor([0, 5]))
    with pytest.raises(IndexError, match="index -1"):
        nn.EmbeddingBag(5, 2)(ag.tensor([[0, -1]]))


def test_wrong_ids_and_offsets_are_refused() -> None:
    bag = nn.EmbeddingBag(5, 2)

    with pytest.raises(DtypeError, match="integers"):
        bag(ag.ones(2, 2))
    with pytest.raises(ShapeError, match="offsets"):
        bag(ag.tensor([1, 2]))
    with pytest.raises(ShapeError, match="never fall"):
        bag(ag.tensor([1, 2]), ag.tensor([0, 2, 1]))
    with pytest.raises(ValueError, match="mode 'sum'"):
        bag(ag.tensor([[1]]), per_sample_weights=ag.ones(1, 1))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_pretrained_table_is_frozen_by_default(kind: Any) -> None:
    table = ag.randn(4, 3)

    layer = kind.from_pretrained(table)

    assert not layer.weight.requires_grad
    assert np.shares_memory(layer.weight.data, table.data)


def test_padding_row_gets_no_gradient() -> None:
    layer = nn.Embedding(4, 3, padding_idx=2)

    layer(ag.tensor([0, 2, 2, 3])).sum().backward()

    assert layer.weight.data[2].tolist() == [0, 0, 0]
    assert layer.weight.grad.data.sum(axis=1).tolist() == [3, 0, 0, 3]


def test_an_unknown_way_of_pooling_is_refused_when_the_layer_is_made() -> None:
    with pytest.raises(ValueError, match="mode is 'avg'; use 'sum', 'mean' or 'max'"):
        nn.EmbeddingBag(5, 4, mode="avg")


KINDS = {
    "tensor": ag.tensor,
    "numpy": np.asarray,
    "int32": lambda x: np.asarray(x, np.int32),
    "uint8": lambda x: np.asarray(x, np.uint8),
    "fortran": lambda x: np.asfortranarray(np.asarray(x)),
    "list": lambda x: x,
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_may_be_tensors_arrays_or_lists(kind: str) -> None:
    make = KINDS[kind]
    table = ag.tensor(np.arange(10, dtype=np.float32).reshape(5, 2))
    rows = nn.Embedding.from_pretrained(table, freeze=False)
    bags = nn.EmbeddingBag.from_pretrained(table, freeze=False, mode="sum")
    factors = [0.5, 2.0, 1.0, -1.0]
    given = factors if kind == "list" else np.asarray(factors)

    looked_up = rows(make([[4, 0], [1, 1]]))
    pooled = bags(
        make([4, 0, 1, 1]), make([0, 1]), ag.tensor(factors) if kind == "tensor" else given
    )
    square = bags(make([[4, 0], [1, 1]]))
    ag.ops.sum(pooled).backward()

    assert looked_up.data.tolist() == [[[8, 9], [0, 1]], [[2, 3], [2, 3]]]
    assert pooled.data.tolist() == [[4, 4.5], [0, 2]]
    assert pooled.dtype == square.dtype == np.float32
    assert square.data.tolist() == [[8, 10], [4, 6]]
    assert bags.weight.grad is not None
    assert bags.weight.grad.data[:, 0].tolist() == [2, 0, 0, 0, 0.5]


def test_a_number_is_an_id_and_no_ids_are_no_rows() -> None:
    rows, bags = nn.Embedding(5, 2), nn.EmbeddingBag(5, 2, mode="sum")

    assert rows(3).data.tolist() == rows.weight.data[3].tolist()
    assert rows([]).shape == (0, 2)
    assert bags([], [0, 0]).data.tolist() == [[0, 0], [0, 0]]
    assert bags(np.empty(0, np.int64), np.zeros(1, np.int64)).shape == (1, 2)


@pytest.mark.parametrize("ids", [np.zeros(3), [0.5], np.zeros(3, np.bool_), "abc", None])
def test_ids_that_are_no_integers_are_refused(ids: Any) -> None:
    with pytest.raises(DtypeError, match="integers"):
        nn.Embedding(5, 2)(ids)
    with pytest.raises(DtypeError, match="integers"):
        nn.EmbeddingBag(5, 2)(ids, [0])
    with pytest.raises(DtypeError, match="offsets are integers"):
        nn.EmbeddingBag(5, 2)([0], [0.0])
