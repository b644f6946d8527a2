"""The first screen, when it fails; tests of its success are with the trainers'."""

import os
import subprocess
import sys


def test_demo_that_fails_shows_the_log_of_the_culprit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradmesh", "demo"],
        env={**os.environ, "GRADMESH_COORDINATOR_LEESE_S": "1"},
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert done.returncode == 2
    assert "coordinator refused its configuration" in done.stderr
    assert "did you mean 'GRADMESH_COORDINATOR_LEASE_S'?" in done.stderr
