"""`gradmesh train job.toml --on kubernetes`, as a user with the documented rights."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.deploy.emulator.cluster import EmulatedCluster
from tests.deploy.emulator.server import wait_until
from tests.deploy.manifests import ROOT, needs_kubectl
from tests.deploy.user import command, left_over, run

pytestmark = [needs_kubectl, pytest.mark.slow, pytest.mark.timeout(600)]

TRAIN = ("train", "clicks.toml", "--namespace", "team")
JOB = """
[coordinator]
parameter_servers = 1
trainers = 2

[job]
steps = 30
batch_size = 32
log_every = 5
eval_every = 10
eval_batches = 4
output = "result"

[data]
rows = [100, 50]
dense_features = 4

[model]
name = "mine:build"
dim = 4
"""


def test_job_with_own_code_trains_and_copies_its_report(
    emulated: EmulatedCluster, tmp_path: Path
) -> None:
    (tmp_path / "clicks.toml").write_text(JOB)
    shutil.copy(ROOT / "examples/custom_model/field_model.py", tmp_path / "mine.py")

    done = run(tmp_path, *TRAIN)

    assert done.returncode == 0, done.stderr + done.stdout
    assert "AUC, held out" in done.stdout
    report = json.loads((tmp_path / "result/report.json").read_text())
    assert report["figures"]["steps"] == 30
    assert report["settings"]["model"]["name"] == "mine:build"
    lines = [json.loads(x) for x in (tmp_path / "result/metrics.jsonl").read_text().splitlines()]
    assert [x["step"] for x in lines if x["kind"] == "train"] == [5, 10, 15, 20, 25, 30]
    assert [x["step"] for x in lines if x["kind"] == "validation"] == [10, 20]
    assert (tmp_path / "result/report.html").exists()
    assert left_over(emulated) == []


def test_a_job_that_cannot_run_reports_the_reason_and_leaves_nothing(
    emulated: EmulatedCluster, tmp_path: Path
) -> None:
    # The module is local; its import is missing in the pods.
    (tmp_path / "clicks.toml").write_text(JOB)
    (tmp_path / "mine.py").write_text("import a_module_that_nobody_has\n")

    done = run(tmp_path, *TRAIN)

    assert done.returncode == 4, done.stderr + done.stdout
    assert "the trainers were given up" in done.stderr
    assert "a_module_that_nobody_has" in done.stderr
    assert left_over(emulated) == []


def test_ctrl_c_ends_a_job_and_removes_its_cluster(
    emulated: EmulatedCluster, tmp_path: Path
) -> None:
    (tmp_path / "clicks.toml").write_text(JOB.replace("steps = 30", "steps = 1000000"))
    shutil.copy(ROOT / "examples/custom_model/field_model.py", tmp_path / "mine.py")
    process = subprocess.Popen(
        command(tmp_path, *TRAIN),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=tmp_path,
    )
    try:
        wait_until(lambda: emulated.objects.list("jobs"), 90)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()

    assert process.returncode == 130, output
    assert left_over(emulated) == []
