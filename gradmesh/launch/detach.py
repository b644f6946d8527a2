"""Start a supervisor that outlives the command that asked for it."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradmesh.launch.errors import ClusterFailed, StateInUse
from gradmesh.launch.readable import readable
from gradmesh.launch.state import StateFolder

_POLL_S = 0.05


def start_detached(
    folder: StateFolder,
    arguments: Sequence[str],
    config: Path | None,
    environment: Mapping[str, str],
    timeout_s: float = 90.0,
) -> str:
    """Run `gradmesh up` in a session of its own and wait until all its processes run.

    Args:
        folder: Where the cluster lives; its output goes to logs/supervisor.log there.
        arguments: Flags of `up`.
        config: The configuration file.
        environment: Variables added to those of this process.
        timeout_s: Longest wait.

    Returns:
        The coordinator's address.

    Raises:
        StateInUse: Another cluster runs in the state folder.
        ClusterFailed: The cluster did not come up; carries the tail of the supervisor's log.
    """
    if folder.in_use():
        raise StateInUse(folder.path, folder.supervisor_pid())
    folder.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    shared = () if config is None else ("--config", str(config))
    argv = [
        sys.executable,
        "-m",
        "gradmesh",
        "up",
        "--state",
        str(folder.path),
        *shared,
        *arguments,
    ]
    with folder.log_file("supervisor").open("wb") as log:
        supervisor = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    deadline = time.monotonic() + timeout_s
    while supervisor.poll() is None:
        record = folder.read() or {}
        if record.get("pid") == supervisor.pid and record.get("ready"):
            # It lives on without us; nobody is left to reap it but init.
            supervisor.returncode = 0
            return str(record["address"])
        if time.monotonic() > deadline:
            supervisor.terminate()
            supervisor.wait(timeout_s)
            break
        time.sleep(_POLL_S)
    raise ClusterFailed(
        f"the cluster did not come up in {str(folder.path)!r}; see logs/supervisor.log there",
        supervisor.returncode or 4,
        tuple(readable(line) for line in folder.tail("supervisor")),
    )
