import subprocess
import sys
from pathlib import Path

import pytest

from gradmesh.launch.errors import NoCluster
from gradmesh.launch.local_launcher import end_cluster
from gradmesh.launch.state import StateFolder

SUPERVISOR = """
import os, pathlib, signal, sys, time
from gradmesh.launch.state import StateFolder
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = StateFolder(pathlib.Path(sys.argv[1]))
folder.lock()
folder.write({"pid": os.getpid(), "children": []})
print("locked", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("mode", "in_order"), [("meek", True), ("stubborn", False)])
def test_supervisor_is_stopped_in_order_or_killed(
    tmp_path: Path, mode: str, in_order: bool
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path), mode], stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "locked\n"

        assert end_cluster(StateFolder(tmp_path), timeout_s=20 if in_order else 0.2) is in_order

        assert supervisor.wait(120) == (-15 if in_order else -9)
    assert not StateFolder(tmp_path).in_use()


def test_folder_without_a_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match="gradmesh up --state"):
        end_cluster(StateFolder(tmp_path), timeout_s=1)
