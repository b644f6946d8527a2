"""`gradmesh scale` on a cluster of this machine: servers start, and end when they are empty."""

import subprocess
import sys
import time

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.launch.local import LocalCluster
from gradmesh.sdk.mesh.connect import connect

IDS = np.arange(300)


def gradmesh(*words):
    return subprocess.run(
        [sys.executable, "-m", "gradmesh", *words], capture_output=True, text=True, timeout=100
    )


def servers(cluster):
    return [p["name"] for p in cluster.processes() if p["role"] == "parameter-server"]


@pytest.mark.timeout(600)
def test_servers_join_and_leave(tmp_path):
    state = tmp_path / "state"
    with (
        LocalCluster(parameter_servers=1, state=state) as cluster,
        connect(cluster.address) as mesh,
    ):
        table = mesh.table("user", rows=300, dim=4, optimizer=optim.Adagrad(lr=0.1))
        table.push(IDS, np.ones((300, 4), np.float32))
        before = table.lookup(IDS)
        scale = ("scale", "parameter-servers", "--state", str(state))

        none = gradmesh(*scale, "0")
        more = gradmesh(*scale, "3")
        grown = servers(cluster)
        on_three = table.lookup(IDS)
        fewer = gradmesh(*scale, "2")
        deadline = time.monotonic() + 60
        while len(servers(cluster)) > 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        shrunk = servers(cluster)
        on_two = table.lookup(IDS)

    assert none.returncode == 2
    assert "there is one at least" in none.stderr
    assert (more.returncode, fewer.returncode) == (0, 0), more.stderr + fewer.stderr
    assert more.stdout.startswith("3 parameter servers: 2730 of 4096 buckets moved, in ")
    assert grown == ["parameter-server-0", "parameter-server-1", "parameter-server-2"]
    assert fewer.stdout.startswith("2 parameter servers: 1365 of 4096 buckets moved, in ")
    assert shrunk == ["parameter-server-0", "parameter-server-1"]
    assert (on_three == before).all()
    assert (on_two == before).all()


def test_without_a_cluster(tmp_path):
    found = gradmesh("scale", "parameter-servers", "2", "--state", str(tmp_path))

    assert found.returncode == 3
    assert "no cluster runs" in found.stderr
