"""A process that dies in the middle of a checkpoint leaves no visible checkpoint."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.errors import CheckpointCorrupt

# Sends itself a signal when half of the rows are written, a small file after the other.
_SAVER = """
import os, signal, sys
# Where tests run in the background the shell has SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from gradmesh.sdk.checkpoint import save
from gradmesh.sdk.mesh.connect import connect

save._FILE_BYTES = 1
def progress(done, total):
    if done * 2 > total:
        os.kill(os.getpid(), int(sys.argv[3]))
with connect(sys.argv[1]) as mesh:
    mesh.checkpoint(sys.argv[2], progress=progress)
"""


@pytest.fixture
def cluster(make_cluster):
    cluster = make_cluster(parameter_servers=3)
    table = cluster.connect().table("user", dim=64, optimizer=optim.SGD(lr=0.5))
    table.push(np.arange(60_000), np.ones((60_000, 64), np.float32))
    return cluster


def save_and_signal(cluster, target, number):
    return subprocess.run(
        [sys.executable, "-c", _SAVER, cluster.address, target, str(int(number))],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        timeout=120,
    )


def test_kill_leaves_no_checkpoint(cluster, tmp_path):
    mesh, target = cluster.connect(), tmp_path / "a"

    died = save_and_signal(cluster, target, signal.SIGKILL)

    assert died.returncode == -signal.SIGKILL
    assert not target.exists()
    (partial,) = tmp_path.iterdir()
    assert not list(partial.rglob("COMPLETE*"))
    with pytest.raises(CheckpointCorrupt, match="not a complete checkpoint"):
        mesh.restore(partial)
    for store in cluster.stores:  # as the servers do after a timeout
        store.checkpointing.snapshots.release_idle(-1)
    assert mesh.checkpoint(target).rows == 60_000


def test_interrupt_leaves_nothing_and_the_next_one_need_not_wait(cluster, tmp_path):
    mesh, target = cluster.connect(), tmp_path / "a"

    interrupted = save_and_signal(cluster, target, signal.SIGINT)

    assert interrupted.returncode == -signal.SIGINT
    assert b"KeyboardInterrupt" in interrupted.stderr
    assert list(tmp_path.iterdir()) == []
    assert mesh.checkpoint(target).rows == 60_000
