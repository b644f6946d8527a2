"""A process that dies in the middle of a checkpoint leaves nothing that looks like one."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.errors import CheckpointCorrupt

# Dies when half of the rows are written.
_SAVER = """
import os, signal, sys
from gradmesh.sdk.checkpoint import save
from gradmesh.sdk.mesh.mesh import connect

save._FILE_BYTES = 1
def progress(done, total):
    if done * 2 > total:
        os.kill(os.getpid(), signal.SIGKILL)
connect(sys.argv[1]).checkpoint(sys.argv[2], progress=progress)
"""


def test_kill_leaves_no_checkpoint(make_cluster, tmp_path):
    cluster = make_cluster(parameter_servers=3)
    mesh = cluster.connect()
    table = mesh.table("user", dim=64, optimizer=optim.SGD(lr=0.5))
    table.push(np.arange(60_000), np.ones((60_000, 64), np.float32))
    target = tmp_path / "a"

    died = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_SAVER), cluster.address, target],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        timeout=50,
    )

    assert died.returncode == -signal.SIGKILL
    assert not target.exists()
    (partial,) = tmp_path.iterdir()
    assert not list(partial.rglob("COMPLETE*"))
    with pytest.raises(CheckpointCorrupt, match="not complete"):
        mesh.restore(partial)
    for store in cluster.stores:  # as the servers do by themselves after a while
        store.copies.snapshots.release_idle(-1)
    assert mesh.checkpoint(target).rows == 60_000
