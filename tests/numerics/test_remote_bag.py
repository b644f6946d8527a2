"""Bags of remote rows equal the engine's EmbeddingBag to the bit, and torch's closely."""

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.autograd import Tensor
from gradmesh.engine.autograd.ops import cat
from gradmesh.engine.nn import EmbeddingBag
from gradmesh.protos.errors import IdOutOfRange, InvalidRequest
from gradmesh.sdk import autograd
from gradmesh.sdk.nn import RemoteEmbedding, RemoteEmbeddingBag
from gradmesh.sdk.table.recipe import Initializer

BATCH = 5
ROWS = (40, 9, 25)
LR = 0.5
# torch adds up in another order, with fused multiply-adds: a few units in the last place.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def make_tables(mesh, dims):
    return [
        mesh.table(
            f"table-{i}",
            rows=rows,
            dim=dim,
            optimizer=optim.SGD(lr=LR),
            initializer=Initializer.normal(1.0),
            seed=i,
        )
        for i, (rows, dim) in enumerate(zip(ROWS, dims, strict=False))
    ]


def draw(seed=0):
    """Ragged bags with repeated ids and empty ones: ids, offsets with the end, weights; a table."""
    rng = np.random.default_rng(seed)
    drawn = []
    for rows in ROWS:
        lengths = rng.integers(0, 6, BATCH)
        lengths[1] = 0
        ids = rng.integers(0, rows, lengths.sum())
        offsets = np.cumsum([0, *lengths])
        drawn.append((ids, offsets, rng.normal(size=ids.size).astype(np.float32)))
    return drawn


def packed(drawn):
    ids = np.concatenate([ids for ids, _, _ in drawn])
    shifts = np.cumsum([0, *(d[0].size for d in drawn)])
    begins = [o[:-1] + s for (_, o, _), s in zip(drawn, shifts[:-1], strict=True)]
    return ids, np.concatenate([*begins, [ids.size]])


def read_all(tables):
    return [table.lookup(np.arange(table.spec.rows)) for table in tables]


def loss_of(pooled, seed=1):
    factors = np.random.default_rng(seed).normal(size=pooled.shape).astype(np.float32)
    return (pooled * pooled * Tensor(factors)).sum()


def local(initial, drawn, mode, padding, weights):
    """Values, gradients of rows and of weights, from the engine's own layers."""
    layers = [
        EmbeddingBag(
            *rows.shape,
            mode=mode,
            include_last_offset=True,
            padding_idx=padding,
            _weight=Tensor(rows.copy()),
        )
        for rows in initial
    ]
    factors = [Tensor(w.copy(), requires_grad=True) if weights else None for _, _, w in drawn]
    parts = [
        layer(Tensor(ids), Tensor(offsets), factor)
        for layer, (ids, offsets, _), factor in zip(layers, drawn, factors, strict=True)
    ]
    pooled = cat(parts, 1)
    loss_of(pooled).backward()
    grads = [layer.weight.grad.data for layer in layers]
    return pooled.data, grads, [f.grad.data for f in factors] if weights else []


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("dims", [(4, 4, 4), (4, 6, 4)], ids=str)
@pytest.mark.parametrize(
    ("mode", "weights"), [("sum", False), ("sum", True), ("mean", False), ("max", False)]
)
@pytest.mark.parametrize("padding", [None, 3])
def test_a_remote_bag_equals_a_local_one(make_cluster, servers, dims, mode, weights, padding):
    mesh = make_cluster(parameter_servers=servers).connect()
    tables = make_tables(mesh, dims)
    layer = RemoteEmbeddingBag(tables, mode=mode, padding_idx=padding)
    initial, drawn = read_all(tables), draw()
    ids, offsets = packed(drawn)
    factors = Tensor(np.concatenate([w for _, _, w in drawn]), requires_grad=True)

    with autograd.context(mesh) as ctx:
        pooled = layer(ids, offsets, factors if weights else None)
        autograd.backward(ctx, [loss_of(pooled)])
        gradients = ctx.gradients()
        autograd.apply(ctx)

    values, row_grads, weight_grads = local(initial, drawn, mode, padding, weights)
    np.testing.assert_array_equal(pooled.data, values)
    for before, after, grad in zip(initial, read_all(tables), row_grads, strict=True):
        np.testing.assert_array_equal(after, before - np.float32(LR) * grad)
    if weights:
        np.testing.assert_array_equal(gradients[factors], np.concatenate(weight_grads))


def test_all_forms_of_input_give_the_same(make_cluster):
    mesh = make_cluster().connect()
    tables = make_tables(mesh, (4, 6, 4))
    drawn = draw()
    ids, offsets = packed(drawn)
    lists = [d[0] for d in drawn], [d[1][:-1] for d in drawn]

    by_pack = RemoteEmbeddingBag(tables)(ids, offsets)
    by_list = RemoteEmbeddingBag(tables)(*lists)
    by_ends = RemoteEmbeddingBag(tables, include_last_offset=True)(lists[0], [d[1] for d in drawn])
    alone = [
        RemoteEmbeddingBag(table)(ids, begins)
        for table, ids, begins in zip(tables, *lists, strict=True)
    ]

    np.testing.assert_array_equal(by_pack.data, by_list.data)
    np.testing.assert_array_equal(by_pack.data, by_ends.data)
    np.testing.assert_array_equal(by_pack.data, cat(alone, 1).data)
    parts = RemoteEmbeddingBag(tables).split(by_pack)
    assert [part.shape for part in parts] == [(BATCH, 4), (BATCH, 6), (BATCH, 4)]
    np.testing.assert_array_equal(parts[1].data, alone[1].data)


def test_bags_of_one_id_are_the_rows(make_cluster):
    mesh = make_cluster().connect()
    tables = make_tables(mesh, (4, 4, 4))
    ids = np.random.default_rng(0).integers(0, min(ROWS), (BATCH, 3))

    pooled = RemoteEmbeddingBag(tables, mode="sum")([ids[:, [i]] for i in range(3)])

    rows = RemoteEmbedding(tables)(ids)
    np.testing.assert_array_equal(pooled.reshape(BATCH, 3, 4).data, rows.data)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types_of_rows(make_cluster, dtype):
    mesh = make_cluster().connect()
    table = mesh.table("t", rows=20, dim=4, optimizer=optim.SGD(lr=LR), dtype=dtype)
    rows = table.lookup(np.arange(20))
    ids = np.array([[1, 2, 1], [3, 3, 3]])

    with autograd.context(mesh) as ctx:
        pooled = RemoteEmbeddingBag(table, mode="sum")(ids)
        autograd.backward(ctx, [pooled.sum()])
        autograd.apply(ctx)

    wide = rows.astype(np.result_type(dtype, np.float32))
    assert pooled.data.dtype == dtype
    np.testing.assert_array_equal(pooled.data, wide[ids].sum(axis=1).astype(dtype))
    change = table.lookup(np.arange(5)) - rows[:5]
    np.testing.assert_allclose(change[:, 0], [0, -1, -0.5, -1.5, 0], atol=1e-2)


@pytest.mark.parametrize(
    ("mode", "weights"), [("sum", False), ("sum", True), ("mean", False), ("max", False)]
)
@pytest.mark.parametrize("padding", [None, 3])
def test_a_remote_bag_is_close_to_torch(make_cluster, mode, weights, padding):
    torch = pytest.importorskip("torch")
    mesh = make_cluster().connect()
    tables = make_tables(mesh, (4, 6, 4))
    initial, drawn = read_all(tables), draw(7)
    ids, offsets = packed(drawn)
    factors = Tensor(np.concatenate([w for _, _, w in drawn]), requires_grad=True)
    peers = [torch.tensor(rows, requires_grad=True) for rows in initial]
    peer_factors = [torch.tensor(w, requires_grad=True) for _, _, w in drawn]

    with autograd.context(mesh) as ctx:
        layer = RemoteEmbeddingBag(tables, mode=mode, padding_idx=padding)
        pooled = layer(ids, offsets, factors if weights else None)
        autograd.backward(ctx, [(pooled * pooled).sum()])
        gradients = ctx.gradients()
        autograd.apply(ctx)
    peer = torch.cat(
        [
            torch.nn.functional.embedding_bag(
                torch.tensor(ids),
                rows,
                torch.tensor(offsets),
                mode=mode,
                include_last_offset=True,
                padding_idx=padding,
                per_sample_weights=factor if weights else None,
            )
            for rows, (ids, offsets, _), factor in zip(peers, drawn, peer_factors, strict=True)
        ],
        1,
    )
    (peer * peer).sum().backward()

    np.testing.assert_allclose(pooled.data, peer.detach().numpy(), **CLOSE)
    for before, after, rows in zip(initial, read_all(tables), peers, strict=True):
        np.testing.assert_allclose(after, before - LR * rows.grad.numpy(), **CLOSE)
    if weights:
        expected = np.concatenate([f.grad.numpy() for f in peer_factors])
        np.testing.assert_allclose(gradients[factors], expected, **CLOSE)


@pytest.mark.parametrize(
    ("ids", "offsets", "message"),
    [
        (np.arange(3), None, "give a list of 3 arrays"),
        (np.arange(3), [0, 1, 2], "offsets of shape"),
        (np.arange(3), [0, 1, 1, 4], "rise from 0"),
        (np.arange(3), [0, 2, 1, 3], "rise from 0"),
        ([[[1]], [[1]]], None, "2 arrays of ids"),
        ([[[1]], [[1], [2]], [[1]]], None, "equally many"),
        ([[[1]], [1], [[1]]], None, "without offsets"),
        ([[[1.5]], [[1]], [[1]]], None, "must be integers"),
    ],
)
def test_input_that_does_not_fit_is_refused(make_cluster, ids, offsets, message):
    layer = RemoteEmbeddingBag(make_tables(make_cluster().connect(), (4, 6, 4)))

    with pytest.raises(InvalidRequest, match=message):
        layer(ids, offsets)


def test_invalid_settings_are_refused(make_cluster):
    tables = make_tables(make_cluster().connect(), (4, 6, 4))

    with pytest.raises(InvalidRequest, match="mode is 'median'"):
        RemoteEmbeddingBag(tables, mode="median")
    with pytest.raises(InvalidRequest, match="padding_idx 9"):
        RemoteEmbeddingBag(tables, padding_idx=9)
    with pytest.raises(InvalidRequest, match="2 paddings"):
        RemoteEmbeddingBag(tables, padding_idx=[1, None])
    with pytest.raises(InvalidRequest, match="need mode 'sum'"):
        RemoteEmbeddingBag(tables[0])([[1]], None, [[1.0]])
    with pytest.raises(InvalidRequest, match="for 2 ids"):
        RemoteEmbeddingBag(tables[0], mode="sum")([[1, 2]], None, [[1.0]])
    with pytest.raises(IdOutOfRange, match="'table-1': id 9"):
        RemoteEmbeddingBag(tables)([[[1]], [[9]], [[1]]])


def test_an_empty_batch_and_bags_of_padding_alone(make_cluster):
    mesh = make_cluster().connect()
    tables = make_tables(mesh, (4, 6))
    layer = RemoteEmbeddingBag(tables, padding_idx=1)

    with autograd.context(mesh) as ctx:
        empty = layer([np.empty((0, 3)), np.empty((0, 2))])
        padded = layer([[[1, 1]], [[1]]])
        autograd.backward(ctx, [padded.sum() + empty.sum()])
        autograd.apply(ctx)

    assert empty.shape == (0, 10)
    assert padded.data.tolist() == [[0.0] * 10]
