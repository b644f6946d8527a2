"""`gm.connect` and `gm.TableReader`: their value objects and their metrics."""

import subprocess
import sys

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import gradmesh as gm


def exported(registry: CollectorRegistry) -> set[str]:
    return {family.name for family in registry.collect()}


@pytest.mark.parametrize("open_client", [gm.connect, gm.TableReader])
def test_a_registry_exports_metrics_until_the_client_is_closed(cluster, open_client):
    cluster.connect().table("user", rows=10, dim=2, optimizer=gm.optim.SGD(lr=1.0))
    registry = CollectorRegistry(auto_describe=True)

    for _ in range(2):  # the second client may use the registry of the first one
        with open_client(cluster.address, registry=registry) as client:
            if isinstance(client, gm.Mesh):
                client.open_table("user").lookup([1])
            else:
                client.lookup("user", [1])
            page = generate_latest(registry)
            with pytest.raises(gm.errors.InvalidRequest, match="metrics of another client"):
                open_client(cluster.address, registry=registry)

        assert b"gradmesh_table_lookups_total 1.0" in page
        assert b"gradmesh_rpc_client_calls_total" in page
        assert exported(registry) == set()


def test_a_client_that_cannot_connect_leaves_no_metrics() -> None:
    registry = CollectorRegistry(auto_describe=True)

    with pytest.raises((gm.errors.Unreachable, gm.errors.DeadlineExceeded)):
        gm.connect("127.0.0.1:1", registry=registry, timeouts=gm.Timeouts(join_s=0.2))

    assert exported(registry) == set()


def test_big_requests_are_cut_to_the_limit(cluster) -> None:
    limits = gm.Limits(max_frame_bytes=4096)

    with gm.connect(cluster.address, limits=limits) as mesh:
        table = mesh.table("wide", rows=1000, dim=64, optimizer=gm.optim.SGD(lr=1.0))

        assert table.lookup(np.arange(1000)).shape == (1000, 64)


SIZED_WORKER = """
import sys
import gradmesh as gm

timeouts, limits = gm.Timeouts(call_s=7, transfer_s=9), gm.Limits(max_frame_bytes=8192)
node = gm.rpc.init("sized", coordinator=sys.argv[1], timeouts=timeouts, limits=limits)
connection = node.mesh.connection
print(connection.timeouts.call_s, connection.timeouts.transfer_s, gm.rpc.get_timeout())
print(connection.servers.max_frame_bytes)
gm.rpc.shutdown(graceful=False)
"""


def test_a_worker_takes_all_of_its_timeouts_and_limits(cluster) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SIZED_WORKER, cluster.address],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert ran.stdout.split() == ["7", "9", "7", "8192"], ran.stderr
