"""The op suite and the optimizers on the stand-in for a GPU: no GPU code runs here."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd, nn, optim
from gradmesh.engine.autograd import RowGrad, ops
from gradmesh.engine.backend import (
    Device,
    DeviceError,
    Generator,
    copy_rows,
    empty_pinned,
    stream,
    synchronize,
    to_numpy,
)
from gradmesh.engine.backend.cuda import stand_in
from tests.cupy_stand_in import StandInArray, StandInModule

OURS = SimpleNamespace(**{**vars(ops), **vars(autograd)})


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with stand_in(StandInModule()):
        yield


def run(case: Any, arrays: Any, device: str) -> tuple[list[Any], list[Any]]:
    inputs = [autograd.tensor(a, device=device).requires_grad_(has_grad) for a, has_grad in arrays]
    outs = case.call(OURS, nn.functional, *inputs)
    outs = outs if isinstance(outs, tuple) else (outs,)
    for out in outs:
        seed = np.cos(np.arange(out.numel())).reshape(out.shape)
        out.backward(autograd.tensor(seed, device=device), retain_graph=True)
    kind = StandInArray if device == "cuda" else np.ndarray
    grads = [x.grad.data for x in inputs if x.requires_grad]
    values = [out.data for out in outs]
    assert all(type(array) is kind for array in (*values, *grads))
    return [to_numpy(v) for v in values], [to_numpy(g) for g in grads]


def test_values_and_gradients_equal_those_of_the_cpu(case: Any, arrays: Any) -> None:
    expected = run(case, arrays, "cpu")

    found = run(case, arrays, "cuda")

    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("name", optim.rule_names())
def test_rules_update_dense_and_rows_as_on_the_cpu(name: str, maximize: bool) -> None:
    results = []
    for device in ("cpu", "cuda"):
        rng = np.random.default_rng(0)
        rule = optim.make_rule(name, {"maximize": maximize})
        dense = nn.Parameter(autograd.tensor(rng.normal(size=(4, 3)), device=device))
        rows = nn.Parameter(autograd.tensor(rng.normal(size=(4, 3)), device=device))
        slots = rule.dense_slots(dense.data)
        row_slots = rule.allocate(4, 3, "float64", xp=_module(device))
        # RAdam begins to divide at the sixth step.
        for step in (1, 2, 6):
            grad = autograd.tensor(rng.normal(size=(4, 3)), device=device).data
            ids = autograd.tensor(np.array([2, 0]), device=device).data
            rule.update(dense.data, slots, grad, 0.1, step)
            rule.update_rows(rows.data, row_slots, ids, grad[1:3], 0.1, step)
        results.append([to_numpy(dense.data), to_numpy(rows.data)])

    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def _module(device: str) -> Any:
    from gradmesh.engine.backend.cuda import cuda_module

    return cuda_module() if device == "cuda" else np


def test_a_model_trains_on_the_device() -> None:
    losses = []
    for device in ("cpu", "cuda"):
        generator = Generator(0)
        bag = nn.EmbeddingBag(20, 4, mode="sum", sparse=True, generator=generator).to(device)
        top = nn.MLP([4, 8, 1], generator=generator).to(device)
        optimizer = optim.Adagrad([*bag.parameters(), *top.parameters()], lr=0.1)
        ids = autograd.tensor(np.arange(12).reshape(4, 3) % 7, device=device)
        y = autograd.tensor(np.array([[0.0], [1.0], [1.0], [0.0]], np.float32), device=device)
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(top(bag(ids)), y)
            loss.backward()
            assert isinstance(bag.weight.grad, RowGrad)
            nn.clip_grad_norm_(top.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())

    assert losses[:3] == pytest.approx(losses[3:], rel=1e-5)


def test_devices_do_not_mix() -> None:
    with pytest.raises(DeviceError, match="Add got tensors on cpu, cuda:0"):
        autograd.ones(2) + autograd.ones(2, device="cuda")


def test_tensors_move_and_gradients_come_back() -> None:
    x = autograd.ones(2, requires_grad=True)

    y = x.to("cuda") * 3
    y.cpu().sum().backward()

    assert y.device == Device("cuda", 0)
    assert x.grad.device == Device("cpu")
    assert x.grad.tolist() == [3.0, 3.0]


def test_stand_in_refuses_implicit_conversion() -> None:
    array = autograd.ones(2, device="cuda").data

    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(array)
    with pytest.raises(TypeError, match="Unsupported type"):
        array + np.ones(2)
    with pytest.raises(AttributeError):
        array.dot(array)


def test_rows_go_to_the_device_through_pinned_memory() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    pinned = empty_pinned((5, 2), np.float32)

    with stream(Device("cuda", 0)) as made:
        found = copy_rows(rows, Device("cuda", 0), pinned)
        made.synchronize()
    synchronize(Device("cuda", 0))

    assert type(found) is StandInArray
    np.testing.assert_array_equal(to_numpy(found), rows)
    np.testing.assert_array_equal(copy_rows(rows, Device("cpu"), pinned), rows)
