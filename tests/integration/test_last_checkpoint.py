"""How long the end of a job waits for its last checkpoint."""

import threading
from pathlib import Path
from typing import Any

import pytest

from gradmesh.trainer.job.checkpoints import Checkpoints
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.dense import DenseState


def test_a_stalled_checkpoint_times_out(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, stalls = [0.0], threading.Event()
    config = JobConfig(checkpoint_path=str(tmp_path), checkpoint_timeout_s=100.0)
    checkpoints = Checkpoints(cluster.connect(), config, {}, clock=lambda: now[0])

    def stall(*_: object) -> None:  # as a file system that does not answer
        stalls.wait(120)

    monkeypatch.setattr(checkpoints, "_write_again", stall)
    held = DenseState(0, 3, {}, batches=3)

    try:
        early = [checkpoints.complete(lambda: held, 1) for _ in range(2)]
        now[0] = 1000.0
        late = checkpoints.complete(lambda: held, 1)
    finally:
        stalls.set()
    checkpoints.finish()

    assert early == [False, False]
    assert late
    assert "gave up waiting for the last checkpoint" in caplog.text
