from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn, optim
from gradmesh.engine.autograd import RowGrad
from gradmesh.engine.backend import ShapeError
from gradmesh.engine.backend.dtype import as_dtype

SETTINGS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-6}),
    ("Adam", {"lr": 0.1}),
    ("Adam", {"lr": 0.1, "betas": (0.8, 0.95), "weight_decay": 0.01, "amsgrad": True}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.1, "amsgrad": True}),
    ("Adamax", {"lr": 0.1, "weight_decay": 0.01}),
    ("RMSprop", {"lr": 0.1}),
    ("RMSprop", {"lr": 0.1, "momentum": 0.9}),
    ("RMSprop", {"lr": 0.1, "centered": True}),
    ("RMSprop", {"lr": 0.1, "momentum": 0.9, "centered": True, "weight_decay": 0.01}),
    ("Rprop", {"lr": 0.1}),
    ("Rprop", {"lr": 0.01, "etas": (0.3, 1.5), "step_sizes": (1e-3, 0.02)}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "weight_decay": 0.01}),
    ("NAdam", {"lr": 0.1}),
    ("NAdam", {"lr": 0.1, "betas": (0.8, 0.95), "weight_decay": 0.01, "momentum_decay": 0.1}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True, "eps": 1e-4}),
    ("NAdam", {"lr": 0.1, "betas": (0.0, 0.9), "momentum_decay": 0.0}),
    ("RAdam", {"lr": 0.1}),
    ("RAdam", {"lr": 0.1, "betas": (0.8, 0.95), "weight_decay": 0.01}),
    ("RAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True, "eps": 1e-4}),
    ("RAdam", {"lr": 0.1, "betas": (0.9, 0.6)}),
]


@pytest.fixture
def torch_of(dtype: str) -> Iterator[Any]:
    """torch, whose scalars of state are of a dtype: NAdam's would be float32 otherwise."""
    torch = pytest.importorskip("torch")
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    yield torch
    torch.set_default_dtype(before)


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("maximize", [False, True], ids=["", "maximize"])
@pytest.mark.parametrize(("name", "options"), SETTINGS)
def test_steps_equal_torch(
    name: str,
    options: dict[str, Any],
    maximize: bool,
    dtype: str,
    rtol: float,
    assert_parity: Any,
    torch_of: Any,
) -> None:
    torch, options = torch_of, {**options, "maximize": maximize}
    rng = np.random.default_rng(0)
    start = [rng.normal(size=s).astype(dtype) for s in ((5, 7), (7,), (1, 3, 2))]
    mine = [nn.Parameter(a.copy()) for a in start]
    theirs = [torch.nn.Parameter(torch.tensor(a)) for a in start]
    ours = getattr(optim, name)(mine, **options)
    peer = getattr(torch.optim, name)(theirs, **options)

    for _ in range(20):
        for p, q in zip(mine, theirs, strict=True):
            grad = rng.normal(size=p.shape).astype(dtype)
            p.grad, q.grad = ag.tensor(grad), torch.tensor(grad)
        ours.step()
        peer.step()

    for p, q in zip(mine, theirs, strict=True):
        assert_parity(p.data, q, rtol)


@pytest.mark.parametrize("name", optim.rule_names())
def test_rows_follow_the_same_rule_as_dense(name: str) -> None:
    rule = optim.make_rule(name, {})
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(6, 9)).astype(np.float32)
    rows = dense.copy()
    dense_slots, row_slots = rule.dense_slots(dense), rule.allocate(6, 9, np.float32)
    order = np.array([4, 0, 5, 1, 3, 2])

    for step in range(1, 4):
        grad = rng.normal(size=(6, 9)).astype(np.float32)
        rule.update(dense, dense_slots, grad, 0.1, step)
        rule.update_rows(rows, row_slots, order, grad[order], 0.1, step)

    np.testing.assert_array_equal(dense, rows)


RULES = [
    *[(name, {}) for name in optim.rule_names()],
    ("sgd", {"momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("adagrad", {"lr_decay": 0.1, "weight_decay": 0.1}),
    ("rowwise_adagrad", {"weight_decay": 0.1}),
    ("adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("adam", {"weight_decay": 0.1, "decoupled": True}),
    ("adamax", {"weight_decay": 0.1}),
    ("rmsprop", {"momentum": 0.9, "weight_decay": 0.1}),
    ("rmsprop", {"momentum": 0.9, "centered": True}),
    ("adadelta", {"weight_decay": 0.1}),
    ("rprop", {"step_sizes": (0.05, 0.11)}),
    ("ftrl", {"l1": 0.8, "l2": 0.1}),
    ("nadam", {"weight_decay": 0.1, "momentum_decay": 0.1}),
    ("nadam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("radam", {"weight_decay": 0.1, "betas": (0.9, 0.9)}),
    ("radam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
]


@pytest.mark.parametrize(("name", "options"), RULES)
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-5), ("float64", 1e-12)])
def test_kernel_agrees_with_formula(
    name: str, options: dict[str, Any], dtype: str, rtol: float, assert_parity: Any
) -> None:
    rule = optim.make_rule(name, options)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(6, 33)).astype(dtype)
    expected = weights.copy()
    slots, twin = rule.allocate(6, 33, dtype), rule.allocate(6, 33, dtype)

    # RAdam begins to divide at the sixth step.
    for step in range(1, 9):
        grads = rng.normal(size=(6, 33)).astype(dtype)
        rule.update_rows(weights, slots, np.arange(6), grads, 0.1, step)
        rule.formula(np, expected, twin, grads, 0.1, step)

    assert rule.kernel() is not None
    assert_parity(weights, expected, rtol)
    for key, array in slots.items():
        assert_parity(array, twin[key], rtol)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "options"), RULES)
def test_maximize_is_the_step_of_the_turned_gradient(
    name: str, options: dict[str, Any], dtype: str
) -> None:
    down, up = (optim.make_rule(name, {**options, "maximize": m}) for m in (False, True))
    rng = np.random.default_rng(0)
    start = rng.normal(size=(6, 5)).astype(as_dtype(dtype))
    found: list[list[Any]] = []

    for rule, sign in ((down, -1), (up, 1)):
        rng = np.random.default_rng(1)
        dense, rows = start.copy(), start.copy()
        dense_slots, row_slots = rule.dense_slots(dense), rule.allocate(6, 5, dense.dtype)
        for step in (1, 2, 3):
            grads = (sign * rng.normal(size=(6, 5))).astype(dense.dtype)
            kept = grads.copy()
            rule.update(dense, dense_slots, grads, 0.1, step)
            rule.update_rows(rows, row_slots, np.array([3, 1]), grads[:2], 0.1, step)
            np.testing.assert_array_equal(grads, kept)
        found.append([dense, rows, *dense_slots.values(), *row_slots.values()])

    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (found[0][0] != start).any()


@pytest.mark.parametrize(("name", "options"), RULES)
def test_a_nan_gradient_stays_visible(name: str, options: dict[str, Any]) -> None:
    rule = optim.make_rule(name, options)
    weights = np.ones((2, 3), np.float32)
    slots = rule.allocate(2, 3, np.float32)
    grads = np.array([[1, np.nan, 1]], np.float32)

    rule.update_rows(weights, slots, np.array([1]), grads, 0.1, 1)

    assert np.isnan(weights[1, 1])
    assert np.isfinite(weights[0]).all()


@pytest.mark.parametrize(("name", "options"), RULES)
def test_rows_without_a_gradient_keep_weights_and_state(name: str, options: dict[str, Any]) -> None:
    rule = optim.make_rule(name, options)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(5, 3)).astype(np.float32)
    slots = rule.allocate(5, 3, np.float32)
    every = rng.normal(size=(5, 3)).astype(np.float32)
    rule.update_rows(weights, slots, np.arange(5), every, 0.1, 1)
    before, kept = weights.copy(), {key: array.copy() for key, array in slots.items()}

    rule.update_rows(weights, slots, np.array([3, 1]), every[:2], 0.1, 2)

    others = [0, 2, 4]
    assert (weights[[1, 3]] != before[[1, 3]]).any(axis=1).all()
    np.testing.assert_array_equal(weights[others], before[others])
    for key, array in slots.items():
        np.testing.assert_array_equal(array[others], kept[key][others])


@pytest.mark.parametrize(
    "name",
    [
        *("SGD", "Adagrad", "RowwiseAdagrad", "Adam", "AdamW", "Adamax"),
        *("RMSprop", "Rprop", "Adadelta", "FTRL", "NAdam", "RAdam"),
    ],
)
def test_row_gradients_of_repeated_ids_act_as_their_sum(name: str) -> None:
    rng = np.random.default_rng(0)
    ids = np.array([3, 0, 3, 3, 1])
    rows = rng.normal(size=(5, 2)).astype(np.float32)
    start = rng.normal(size=(4, 2)).astype(np.float32)
    sparse, dense = nn.Parameter(start.copy()), nn.Parameter(start.copy())
    optimizers = [getattr(optim, name)([p], lr=0.1) for p in (sparse, dense)]

    for _ in range(3):
        sparse.grad = RowGrad(ids, rows, 4)
        dense.grad = ag.tensor(sparse.grad.to_dense())
        for optimizer in optimizers:
            optimizer.step()

    used = [0, 1, 3]
    np.testing.assert_array_equal(sparse.data[used], dense.data[used])
    np.testing.assert_array_equal(sparse.data[2], start[2])


def test_bad_rows_change_nothing() -> None:
    rule = optim.make_rule("adagrad", {})
    weights = np.ones((4, 3), np.float32)
    slots = rule.allocate(4, 3, np.float32)

    with pytest.raises(IndexError):
        rule.update_rows(weights, slots, np.array([0, 4]), np.ones((2, 3), np.float32), 0.1, 1)
    with pytest.raises(ShapeError):
        rule.update_rows(weights, slots, np.array([0]), np.ones((2, 3), np.float32), 0.1, 1)

    assert weights.tolist() == [[1, 1, 1]] * 4


def test_optimizer_without_parameters_is_a_recipe() -> None:
    recipe = optim.RowwiseAdagrad(0.05)

    assert recipe.is_recipe
    assert recipe.lr == 0.05
    assert recipe.rule.name == "rowwise_adagrad"
    assert optim.make_rule(recipe.rule.name, optim.rule_options(recipe.rule)) == recipe.rule
    assert optim.SGD(lr=0.1).lr == 0.1


def test_step_takes_gradients_from_a_map() -> None:
    p, q = nn.Parameter(ag.ones(2)), nn.Parameter(ag.ones(2))
    optimizer = optim.SGD([p, q], lr=0.5)

    optimizer.step({p: np.ones(2, np.float32)})

    assert p.tolist() == [0.5, 0.5]
    assert q.tolist() == [1.0, 1.0]
    assert p.grad is None


def test_steps_of_a_map_and_of_grad_are_the_same_and_planned_once() -> None:
    made = [ag.Tensor(np.ones(3, np.float32), requires_grad=True) for _ in range(2)]
    plain, mapped = [optim.Adam([param], lr=0.1) for param in made]
    plans = []

    for step in range(3):
        grad = np.full(3, step + 1.0, np.float32)
        made[0].grad = ag.Tensor(grad)
        plain.step()
        mapped.step({made[1]: grad})
        plans.append(mapped._bounds[made[1]])

    np.testing.assert_array_equal(made[0].data, made[1].data)
    assert plans[0] is plans[1] is plans[2]


def test_row_gradient_updates_only_its_rows() -> None:
    p = nn.Parameter(ag.ones(4, 2))
    p.grad = RowGrad(np.array([1, 1]), np.ones((2, 2), np.float32), 4)

    optim.SGD([p], lr=0.25).step()

    assert p.tolist() == [[1, 1], [0.5, 0.5], [1, 1], [1, 1]]


def test_state_round_trips() -> None:
    def run(steps: list[float], optimizer: Any, p: Any) -> None:
        for value in steps:
            p.grad = ag.full((3,), value)
            optimizer.step()

    p, q = nn.Parameter(ag.ones(3)), nn.Parameter(ag.ones(3))
    first = optim.SGD([p], lr=0.1, momentum=0.9)
    run([1.0, 2.0], first, p)
    q.data[...] = p.data
    second = optim.SGD([q], lr=0.3)
    second.load_state_dict(first.state_dict())
    run([3.0], first, p)
    run([3.0], second, q)

    assert p.tolist() == q.tolist()


def test_groups_have_their_own_options() -> None:
    p, q = nn.Parameter(ag.ones(1)), nn.Parameter(ag.ones(1))
    optimizer = optim.SGD([{"params": [p]}, {"params": [q], "lr": 0.5}], lr=0.1)
    p.grad = q.grad = ag.ones(1)

    optimizer.step()

    assert p.item() == pytest.approx(0.9)
    assert q.item() == pytest.approx(0.5)


def test_bad_arguments_are_named() -> None:
    p = nn.Parameter(ag.ones(1))

    with pytest.raises(ValueError, match="nesterov"):
        optim.SGD([p], lr=0.1, nesterov=True)
    with pytest.raises(ValueError, match="negative"):
        optim.SGD([p], lr=-1.0)
    with pytest.raises(ValueError, match="more than one"):
        optim.SGD([{"params": [p]}, {"params": [p]}], lr=0.1)
    with pytest.raises(ValueError, match="no rule"):
        optim.make_rule("magic", {})


def test_ftrl_follows_its_closed_form_and_makes_zeros() -> None:
    alpha, beta, l1, l2 = 0.3, 1.0, 0.8, 0.1
    p = nn.Parameter(ag.zeros(50, dtype="float64"))
    optimizer = optim.FTRL([p], lr=alpha, beta=beta, l1=l1, l2=l2)
    rng = np.random.default_rng(0)
    z, n, w = np.zeros(50), np.zeros(50), np.zeros(50)

    for _ in range(5):
        g = rng.normal(size=50)
        p.grad = ag.tensor(g)
        optimizer.step()
        sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / alpha
        z, n = z + g - sigma * w, n + g * g
        w = np.where(abs(z) <= l1, 0, -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / alpha + l2))

    np.testing.assert_allclose(p.data, w, rtol=1e-12)
    assert 0 < (p.data == 0).sum() < 50


def test_lazy_adam_leaves_other_rows_and_their_state_alone() -> None:
    p = nn.Parameter(ag.ones(3, 2))
    optimizer = optim.Adam([p], lr=0.1)
    for row in (0, 1):
        p.grad = RowGrad(np.array([row]), np.ones((1, 2), np.float32), 3)
        optimizer.step()

    assert p.data[2].tolist() == [1.0, 1.0]
    assert (p.data[:2] < 1).all()
    assert optimizer.state[p]["slots"]["exp_avg"][2].tolist() == [0.0, 0.0]


def test_weight_that_is_not_contiguous_is_updated() -> None:
    memory = np.ones((3, 4), np.float32)
    p = nn.Parameter(memory.T)
    p.grad = ag.ones(4, 3)

    optim.SGD([p], lr=0.25).step()

    assert (memory == 0.75).all()
