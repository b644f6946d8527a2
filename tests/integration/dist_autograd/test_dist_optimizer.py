"""The distributed optimizer over four workers; names as in upstream's dist_optimizer_test."""

import threading

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.protos.errors import ContextReleased, FunctionNotFound, InvalidRequest
from tests.integration.dist_autograd import functions as f

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("dist_autograd")]

CASES = [
    (gm.optim.SGD, {"lr": 0.05}),
    (gm.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (gm.optim.Adagrad, {"lr": 0.05}),
    (gm.optim.RowwiseAdagrad, {"lr": 0.05}),
    (gm.optim.RMSprop, {"lr": 0.01}),
    (gm.optim.Adam, {"lr": 0.01}),
    (gm.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (gm.optim.AdamW, {"lr": 0.05, "betas": (0.8, 0.99), "weight_decay": 0.2}),
    (gm.optim.Adamax, {"lr": 0.05}),
    (gm.optim.Adadelta, {}),
    (gm.optim.Rprop, {}),
    (gm.optim.FTRL, {"lr": 0.05}),
    (gm.optim.NAdam, {"lr": 0.05, "maximize": True}),
    (gm.optim.RAdam, {"lr": 0.05}),
]


class Pair:
    """Layers on two workers, and their twins here."""

    def __init__(self, first="worker1", second="worker2"):
        self.layers = [gm.remote(first, f.Layer, (10,)), gm.remote(second, f.Layer, (20,))]
        self.rrefs = [layer.rpc_sync().get_w() for layer in self.layers]
        self.idle = [layer.rpc_sync().get_idle() for layer in self.layers]
        self.twins = [f.Layer(10), f.Layer(20)]
        self.x = gm.tensor(np.arange(9, dtype=np.float32).reshape(3, 3) / 9)

    def backward(self, ctx, scale=1.0):
        hidden = self.layers[0].rpc_sync().forward(self.x)
        gm.autograd.backward(ctx, [self.layers[1].rpc_sync().forward(hidden).sum() * scale])

    def step(self, optimizer):
        with gm.autograd.context() as ctx:
            self.backward(ctx)
            optimizer.step(ctx)

    def local_step(self, optimizer):
        optimizer.zero_grad()
        self.twins[1].forward(self.twins[0].forward(self.x)).sum().backward()
        optimizer.step()

    def values(self):
        return [rref.to_here().data for rref in self.rrefs]

    def assert_equal_twins(self):
        for there, twin in zip(self.values(), self.twins, strict=True):
            np.testing.assert_allclose(there, twin.w.data, rtol=1e-6, atol=1e-7)


def test_every_optimizer_of_the_engine_has_a_case():
    assert {cls for cls, _ in CASES} == {
        cls
        for name in gm.optim.__all__
        if isinstance(cls := getattr(gm.optim, name), type)
        and issubclass(cls, gm.optim.Optimizer)
        and cls is not gm.optim.Optimizer
    }


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("cls", "options"), CASES)
def test_dist_optim(world, cls, options, mode):
    pair = Pair()
    remote = gm.optim.DistributedOptimizer(cls, pair.rrefs, mode=mode, **options)
    local = cls([twin.w for twin in pair.twins], **options)

    for _ in range(3):
        pair.step(remote)
        pair.local_step(local)

    pair.assert_equal_twins()


def test_dist_optim_own_worker(world):
    pair = Pair("worker0", "worker1")
    remote = gm.optim.DistributedOptimizer(gm.optim.SGD, pair.rrefs, 0.05)
    pair.step(remote)
    pair.local_step(gm.optim.SGD([twin.w for twin in pair.twins], 0.05))

    pair.assert_equal_twins()


@pytest.mark.parametrize("cls", [gm.optim.SGD, gm.optim.RMSprop, gm.optim.Rprop, gm.optim.Adadelta])
def test_dist_optim_none_grads(world, cls):
    pair = Pair()
    away = gm.remote("worker3", f.Layer, (1,)).rpc_sync().get_w()  # in no context at all
    before = away.to_here().data
    optimizer = gm.optim.DistributedOptimizer(cls, [*pair.rrefs, *pair.idle, away], lr=0.05)
    was = pair.values()
    pair.step(optimizer)

    assert all((old != new).any() for old, new in zip(was, pair.values(), strict=True))
    assert all((rref.to_here().data == 1).all() for rref in pair.idle)
    assert (away.to_here().data == before).all()
    assert sorted(optimizer.state_dict()["state"]) == [0, 1]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_dist_optim_exception(world, mode):
    pair = Pair()
    optimizer = gm.optim.DistributedOptimizer(f.FailingOptimizer, pair.rrefs, lr=0.1, mode=mode)

    with pytest.raises(ValueError, match="error running optimizer on 1") as caught:
        pair.step(optimizer)

    assert caught.value.remote_worker == "worker1"
    assert any("also on worker2" in note for note in caught.value.__notes__)


def test_dist_optim_exception_on_constructor(world):
    pair = Pair()

    with pytest.raises(ValueError, match="error creating optimizer") as caught:
        gm.optim.DistributedOptimizer(f.OptimizerFailingOnConstructor, pair.rrefs)

    assert caught.value.remote_worker == "worker1"
    assert "worker1" in str(caught.value)


def test_dist_optim_options_are_refused_with_the_workers_name(world):
    with pytest.raises(ValueError, match="negative") as caught:
        gm.optim.DistributedOptimizer(gm.optim.SGD, Pair().rrefs, lr=-1.0)

    assert caught.value.remote_worker == "worker1"


def test_failed_step_changes_nothing(world):
    pair = Pair()
    optimizer = gm.optim.DistributedOptimizer(f.FailingOptimizer, pair.rrefs, lr=0.1, on=[2])
    was = pair.values()

    with pytest.raises(ValueError, match="error running optimizer on 2"):
        pair.step(optimizer)

    for old, new in zip(was, pair.values(), strict=True):
        assert (old == new).all()
    assert optimizer.state_dict()["state"] == {}


def test_async_step_is_applied_where_it_can(world):
    pair = Pair()
    optimizer = gm.optim.DistributedOptimizer(
        f.FailingOptimizer, pair.rrefs, lr=0.1, on=[2], mode="async"
    )
    was = pair.values()

    with pytest.raises(ValueError, match="error running optimizer on 2"):
        pair.step(optimizer)

    now = pair.values()
    assert (was[0] != now[0]).any()
    assert (was[1] == now[1]).all()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_concurrent_steps(world, mode):
    """Every step of every client counts: the sum of all gradients has been subtracted."""
    rref = gm.remote("worker1", f.Layer, (3,)).rpc_sync().get_w()
    start = rref.to_here().data
    failed = []

    def client():
        try:
            optimizer = gm.optim.DistributedOptimizer(gm.optim.SGD, [rref], 0.5, mode=mode)
            for _ in range(10):
                with gm.autograd.context() as ctx:
                    gm.autograd.backward(ctx, [rref.to_here().sum()])
                    optimizer.step(ctx)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failed == []
    np.testing.assert_allclose(rref.to_here().data, start - 20, rtol=1e-5)


def test_concurrent_steps_of_one_optimizer(world):
    """Threads share an optimizer over two owners: its state counts every step, too."""
    pair = Pair()
    optimizer = gm.optim.DistributedOptimizer(gm.optim.Adam, pair.rrefs, lr=0.01)
    failed = []

    def client():
        try:
            for _ in range(5):
                pair.step(optimizer)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failed == []
    assert [kept["step"] for kept in optimizer.state_dict()["state"].values()] == [20, 20]


def test_step_between_forward_and_backward(world):
    """A context's backward uses the values of its own forward."""
    pair = Pair()
    optimizer = gm.optim.DistributedOptimizer(gm.optim.SGD, pair.rrefs, 0.5)
    local = gm.optim.SGD([twin.w for twin in pair.twins], 0.5)
    with gm.autograd.context() as ctx:
        hidden = pair.layers[0].rpc_sync().forward(pair.x)
        loss = pair.layers[1].rpc_sync().forward(hidden).sum()
        other = threading.Thread(target=pair.step, args=(optimizer,))
        other.start()
        other.join(60)
        gm.autograd.backward(ctx, [loss])
        optimizer.step(ctx)
    pair.local_step(local)
    local.step()

    pair.assert_equal_twins()


def test_param_groups_and_schedule(world):
    pair = Pair()
    groups = [{"params": [pair.rrefs[0]]}, {"params": [pair.rrefs[1]], "lr": 0.5}]
    remote = gm.optim.DistributedOptimizer(gm.optim.SGD, groups, lr=0.1, momentum=0.9)
    first, second = (twin.w for twin in pair.twins)
    local = gm.optim.SGD(
        [{"params": [first]}, {"params": [second], "lr": 0.5}], lr=0.1, momentum=0.9
    )
    schedules = [gm.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (remote, local)]

    for _ in range(3):
        pair.step(remote)
        pair.local_step(local)
        for schedule in schedules:
            schedule.step()

    assert [group["lr"] for group in remote.param_groups] == [0.0125, 0.0625]
    pair.assert_equal_twins()


def test_momentum_follows_a_schedule(world):
    pair = Pair()
    remote = gm.optim.DistributedOptimizer(gm.optim.Adam, pair.rrefs, lr=0.1)
    local = gm.optim.Adam([twin.w for twin in pair.twins], lr=0.1)
    schedules = [gm.optim.lr_scheduler.OneCycleLR(o, 0.3, total_steps=5) for o in (remote, local)]

    for _ in range(4):
        pair.step(remote)
        pair.local_step(local)
        for schedule in schedules:
            schedule.step()

    assert remote.param_groups[0]["betas"] == local.param_groups[0]["betas"]
    pair.assert_equal_twins()


def test_state_dict(world):
    """The state is that of a local optimizer, and training resumes from it."""
    pair = Pair()
    mixed = [pair.rrefs[1], pair.rrefs[0]]  # not in the order of the workers
    remote = gm.optim.DistributedOptimizer(gm.optim.Adam, mixed, lr=0.05)
    local = gm.optim.Adam([pair.twins[1].w, pair.twins[0].w], lr=0.05)
    pair.step(remote)
    pair.local_step(local)
    saved, twin = remote.state_dict(), local.state_dict()

    assert saved["param_groups"] == twin["param_groups"]
    for number, kept in twin["state"].items():
        for name, array in kept["slots"].items():
            np.testing.assert_allclose(saved["state"][number]["slots"][name], array, rtol=1e-5)

    again = gm.optim.DistributedOptimizer(gm.optim.Adam, mixed, lr=0.9)
    again.load_state_dict(saved)
    pair.step(again)
    pair.local_step(local)
    pair.assert_equal_twins()


def test_load_state_dict_that_does_not_fit_changes_nothing(world):
    pair = Pair()
    optimizer = gm.optim.DistributedOptimizer(gm.optim.Adam, pair.rrefs, lr=0.05)
    pair.step(optimizer)
    saved = optimizer.state_dict()
    broken = {**saved, "state": {0: saved["state"][0], 1: {"step": 7, "slots": {}}}}

    with pytest.raises(ValueError, match="saved state") as caught:
        optimizer.load_state_dict(broken)

    assert caught.value.remote_worker == "worker2"
    assert [kept["step"] for kept in optimizer.state_dict()["state"].values()] == [1, 1]
    with pytest.raises(ValueError, match="other parameter groups"):
        optimizer.load_state_dict({**saved, "param_groups": []})


def test_invalid_options_are_refused(world):
    pair = Pair()
    distributed = gm.optim.DistributedOptimizer
    with pytest.raises(ValueError, match="no mode"):
        distributed(gm.optim.SGD, pair.rrefs, 0.1, mode="eventually")
    with pytest.raises(ValueError, match="empty"):
        distributed(gm.optim.SGD, [], 0.1)
    with pytest.raises(ValueError, match="more than one group"):
        distributed(gm.optim.SGD, [pair.rrefs[0], pair.rrefs[0]], 0.1)
    with pytest.raises(InvalidRequest, match="RRefs"):
        distributed(gm.optim.SGD, [pair.x], 0.1)
    with pytest.raises(InvalidRequest, match="not an optimizer"):
        distributed("gradmesh.nn.Linear", pair.rrefs, 0.1)
    with pytest.raises(FunctionNotFound, match=r"nowhere\.SGD"):
        distributed("nowhere.SGD", pair.rrefs, 0.1)
    optimizer = distributed(gm.optim.SGD, pair.rrefs, 0.1)
    with gm.autograd.context() as ctx:
        pass
    with pytest.raises(ContextReleased):
        optimizer.step(ctx)
