"""Faults of the supervisor and its children, with real processes and real signals."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# A server that holds a port and its lifeline, as the real ones do.
CHILD = """
import socket, sys
from gradmesh.sdk.process.process import Lifecycle, LifecycleConfig
with Lifecycle(LifecycleConfig(lifeline=True)) as life, socket.create_server(("127.0.0.1", 0)) as s:
    open(sys.argv[1], "w").write(str(s.getsockname()[1]))
    life.wait()
sys.exit(life.exit_code)
"""

SUPERVISOR = """
import json, logging, pathlib, sys
from gradmesh.launch.child import ChildSpec
from gradmesh.launch.foreground import wait_for_end
from gradmesh.launch.state import StateFolder
from gradmesh.launch.supervisor import Supervisor
folder = StateFolder(pathlib.Path(sys.argv[1]))
folder.lock()
logging.basicConfig(stream=sys.stderr, level="INFO")
def spec(name):
    port = str(folder.path / (name + ".port"))
    argv = (sys.executable, "-c", sys.argv[2], port)
    return ChildSpec(name=name, role=name, argv=lambda: argv)
supervisor = Supervisor(
    [spec("a"), spec("b")], folder.log_file,
    on_change=lambda children: folder.write({"pid": 0, "children": children}),
)
supervisor.start()
_, code = wait_for_end(supervisor, 30)
folder.unlock()
sys.exit(code)
"""

Until = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def until() -> Until:
    def wait(condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 30
        while not (value := condition()):
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.01)
        return value

    return wait


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(folder), CHILD],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as supervisor:
        try:
            yield supervisor
        finally:
            supervisor.kill()


def children(folder: Path) -> list[dict[str, Any]]:
    try:
        record = json.loads((folder / "cluster.json").read_text())
    except (OSError, ValueError):
        return []
    up = [child for child in record["children"] if child["state"] == "running"]
    return up if len(up) == 2 else []


def ports(folder: Path) -> list[int]:
    files = sorted(folder.glob("*.port"))
    texts = [file.read_text() for file in files]
    return [int(text) for text in texts] if len(texts) == 2 and all(texts) else []


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def is_closed(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_killed_child_is_logged_and_restarted(tmp_path: Path, until: Until) -> None:
    with running(tmp_path) as supervisor:
        first = until(lambda: children(tmp_path))[1]
        until(lambda: ports(tmp_path))

        os.kill(first["pid"], signal.SIGKILL)

        def reborn() -> dict[str, Any] | None:
            now = children(tmp_path)
            return now[1] if now and now[1]["pid"] != first["pid"] else None

        second = until(reborn)
        assert second["restarts"] == 1
        supervisor.send_signal(signal.SIGTERM)
        _, log = supervisor.communicate(timeout=120)
        assert "b was killed by SIGKILL, restarting" in log


def test_killed_supervisor_leaves_no_orphan(tmp_path: Path, until: Until) -> None:
    with running(tmp_path) as supervisor:
        pids = [child["pid"] for child in until(lambda: children(tmp_path))]
        open_ports = until(lambda: ports(tmp_path))

        supervisor.kill()

        until(lambda: all(is_dead(pid) for pid in pids))
        assert all(is_closed(port) for port in open_ports)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_leaves_no_process_and_no_socket(
    tmp_path: Path, until: Until, number: int, code: int
) -> None:
    with running(tmp_path) as supervisor:
        pids = [child["pid"] for child in until(lambda: children(tmp_path))]
        open_ports = until(lambda: ports(tmp_path))

        supervisor.send_signal(number)

        assert supervisor.wait(120) == code
        assert all(is_dead(pid) for pid in pids)
        assert all(is_closed(port) for port in open_ports)
        assert not (tmp_path / "cluster.json").exists()
