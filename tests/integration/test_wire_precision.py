"""Rows and gradients in fewer bytes, over every lane."""

from typing import Any

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.protos.errors import InvalidRequest

IDS = np.array([3, 5, 3, 900])
TOLERANCE = {"float16": 1e-3, "bfloat16": 1e-2, "int8": 1e-2}


@pytest.fixture(scope="module")
def cluster() -> Any:
    with gm.LocalCluster(parameter_servers=2) as cluster:
        yield cluster


@pytest.mark.parametrize("lane", ["shm", "tcp", "stream"])
@pytest.mark.parametrize("precision", list(TOLERANCE))
def test_rows_and_gradients_travel_lossy(cluster: Any, lane: Any, precision: Any) -> None:
    with gm.connect(cluster.address, lane=lane) as mesh:
        name = f"{lane}-{precision}"
        exact = mesh.table(name, rows=1000, dim=8, optimizer=gm.optim.SGD(lr=1.0))
        lossy = mesh.open_table(name, wire_rows=precision, wire_grads=precision)
        before = exact.lookup(IDS)
        grads = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)

        np.testing.assert_allclose(lossy.lookup(IDS), before, atol=TOLERANCE[precision])
        lossy.push(IDS[1:], grads[1:])

        after = exact.lookup(IDS)
        assert not np.array_equal(after, before)
        np.testing.assert_allclose(after[1:], before[1:] - grads[1:], atol=5 * TOLERANCE[precision])
        with gm.autograd.context(mesh) as ctx:
            gm.autograd.backward(ctx, [gm.nn.RemoteEmbedding(lossy)(IDS).sum()])
            gm.autograd.apply(ctx)
        np.testing.assert_allclose(
            exact.lookup([5, 900]), after[[1, 3]] - 1, atol=5 * TOLERANCE[precision]
        )


def test_only_float32_tables_travel_lossy(cluster: Any) -> None:
    with gm.connect(cluster.address) as mesh, pytest.raises(InvalidRequest, match="float32"):
        mesh.table(
            "wide",
            rows=10,
            dim=4,
            optimizer=gm.optim.SGD(lr=1.0),
            dtype=np.float64,
            wire_rows="int8",
        )


def test_lanes_change_no_bit(cluster: Any) -> None:
    found = []
    for lane in ("shm", "tcp", "stream"):
        with gm.connect(cluster.address, lane=lane) as mesh:
            table = mesh.table(f"exact-{lane}", rows=500, dim=8, optimizer=gm.optim.Adagrad(lr=0.1))
            ids = np.arange(500).repeat(2)
            start = table.lookup(ids)
            for step in range(3):
                chance = np.random.default_rng(step)
                table.push(ids, chance.standard_normal((1000, 8)).astype(np.float32))
            found.append(table.lookup(ids) - start)

    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    np.testing.assert_allclose(found[0], found[2], atol=1e-6)
