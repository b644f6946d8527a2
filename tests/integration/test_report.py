"""`gradmesh report` for a cluster that another process started."""

import subprocess
import sys
from pathlib import Path

import pytest

import gradmesh as gm
from gradmesh.cli.report import statuses
from gradmesh.launch.errors import ClusterFailed
from gradmesh.sdk.process.network import SecurityConfig

SMALL = {"job.steps": 60, "job.batch_size": 64, "job.eval_batches": 2}


def test_report_follows_the_run_to_its_end(tmp_path: Path) -> None:
    with gm.LocalCluster(parameter_servers=1, trainers=1, state=tmp_path, settings=SMALL):
        done = subprocess.run(
            [sys.executable, "-m", "gradmesh", "report", "--state", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=120,
        )

    assert (done.returncode, done.stderr) == (0, "")
    assert "AUC, held out" in done.stdout
    assert done.stdout.endswith(
        "training is done; the servers keep the tables until you end them\n"
    )


def test_report_gives_up_on_a_run_that_does_not_move() -> None:
    with gm.LocalCluster(parameter_servers=1) as cluster:
        seen = statuses(cluster.address, SecurityConfig(), patience_s=0.5)

        with pytest.raises(ClusterFailed, match=r"no progress in 0\.5 s") as caught:
            list(seen)

    assert caught.value.exit_code == 3
