"""Tables follow their optimizer: the engine's, torch's where it has one, on any server count."""

import ml_dtypes
import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.optim import lr_scheduler

DIM = 8
ROWS = 300
OPTIMIZERS = {
    "sgd": lambda: optim.SGD(lr=0.1, weight_decay=0.01),
    "momentum": lambda: optim.SGD(lr=0.1, momentum=0.9),
    "adagrad": lambda: optim.Adagrad(lr=0.1, initial_accumulator_value=0.1),
    "rowwise_adagrad": lambda: optim.RowwiseAdagrad(lr=0.1),
    "adam": lambda: optim.Adam(lr=0.01, betas=(0.8, 0.95)),
    "ftrl": lambda: optim.FTRL(lr=0.1, l1=0.01, l2=0.1),
    "nadam": lambda: optim.NAdam(lr=0.01, momentum_decay=0.1),
    "radam": lambda: optim.RAdam(lr=0.01, betas=(0.8, 0.9)),
    "climbing": lambda: optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.01, maximize=True),
}
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64]


def batches(dtype, steps=6):
    rng = np.random.default_rng(3)
    for step in range(1, steps + 1):
        ids = rng.permutation(ROWS)[: rng.integers(1, 200)]
        yield step, ids, rng.standard_normal((ids.size, DIM)).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("kind", ["dense", "hash"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_number_of_servers_gives_the_same_bits(make_shards, name, dtype, kind):
    tables = [
        make_shards(
            count,
            rows=ROWS if kind == "dense" else None,
            dim=DIM,
            dtype=dtype,
            optimizer=OPTIMIZERS[name](),
            schedule=lr_scheduler.CosineAnnealingLR(optim.SGD(), T_max=10),
        )
        for count in (1, 2, 3, 5)
    ]
    for step, ids, grads in batches(dtype):
        for table in tables:
            table.push(ids, grads, step)

    one = tables[0].rows()
    assert len(one) > 200
    assert all(table.rows() == one for table in tables[1:])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_equal_the_engines(make_shards, name):
    optimizer = OPTIMIZERS[name]()
    shards = make_shards(2, dim=DIM, optimizer=optimizer)
    everything = np.arange(ROWS)
    weights = shards.read(everything, peek=True)
    state = optimizer.rule.allocate(ROWS, DIM, np.float32)

    for step, ids, grads in batches(np.float32):
        shards.push(ids, grads, step)
        optimizer.rule.update_rows(weights, state, ids, grads, optimizer.lr, step)

    np.testing.assert_array_equal(shards.read(everything), weights)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(
    ("name", "ours", "options"),
    [
        ("SGD", lambda: optim.SGD(lr=0.1), {}),
        # torch's sparse Adam adds eps before the correction for the start, its dense one after.
        ("SparseAdam", lambda: optim.Adam(lr=0.01, eps=1e-12), {"eps": 1e-12}),
        ("Adagrad", lambda: optim.Adagrad(lr=0.1), {}),
    ],
)
def test_rows_equal_sparse_optimizers_of_torch(make_shards, name, ours, options):
    torch = pytest.importorskip("torch")
    shards = make_shards(2, dim=DIM, optimizer=ours())
    embedding = torch.nn.Embedding(ROWS, DIM, sparse=True)
    with torch.no_grad():
        embedding.weight.copy_(torch.from_numpy(shards.read(np.arange(ROWS), peek=True)))
    theirs = getattr(torch.optim, name)(embedding.parameters(), lr=ours().lr, **options)

    for step, ids, grads in batches(np.float32):
        shards.push(ids, grads, step)
        theirs.zero_grad()
        embedding(torch.from_numpy(ids)).backward(torch.from_numpy(grads))
        theirs.step()

    np.testing.assert_allclose(
        shards.read(np.arange(ROWS)), embedding.weight.detach().numpy(), rtol=2e-5, atol=2e-6
    )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_narrow_rows_are_changed_in_float32(make_shards, dtype):
    shards = make_shards(dim=DIM, dtype=dtype, optimizer=optim.RowwiseAdagrad(lr=0.1))
    first = shards.read([1], peek=True)
    rule = optim.RowwiseAdagrad().rule
    # Squares of these are beyond float16.
    grads = np.full((1, DIM), 3000, np.float32)
    wide, state = first.astype(np.float32), rule.allocate(1, DIM, np.float32)
    rule.update_rows(wide, state, np.zeros(1, np.int64), grads, 0.1, 1)

    shards.push([1], grads.astype(dtype))

    np.testing.assert_array_equal(
        shards.read([1]).astype(np.float32), wide.astype(dtype).astype(np.float32)
    )
    assert shards.shards[0].layout() == (np.float32, {"sum": 1})


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (None, [1, 1, 1, 1]),
        (lambda o: lr_scheduler.ConstantLR(o, factor=0.5, total_iters=2), [0.5, 0.5, 1, 1]),
        (lambda o: lr_scheduler.LinearLR(o, 0.5, 1.0, total_iters=2), [0.5, 0.75, 1, 1]),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=2), [1, 0.5, 0, 0.5]),
        (lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.5), [1, 1, 0.5, 0.5]),
        (
            lambda o: lr_scheduler.CyclicLR(o, 0.25, 0.75, step_size_up=1, cycle_momentum=False),
            [0.25, 0.75, 0.25, 0.75],
        ),
        (
            lambda o: lr_scheduler.OneCycleLR(
                o, 1.0, 3, pct_start=2 / 3, cycle_momentum=False, div_factor=2, final_div_factor=2
            ),
            [0.5, 1, 0.25, 0.25],
        ),
    ],
    ids=["none", "constant", "warm-up", "cosine", "step", "cyclic", "one-cycle"],
)
def test_the_learning_rate_follows_the_schedule(make_shards, schedule, rates):
    shards = make_shards(schedule=schedule and schedule(optim.SGD()))
    last = shards.read([1])
    taken = []

    for _ in rates:
        shards.push([1], np.ones((1, 4), np.float32))
        now = shards.read([1])
        taken.append(float((last - now)[0, 0]))
        last = now

    np.testing.assert_allclose(taken, rates, atol=1e-6)
