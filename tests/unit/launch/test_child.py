import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gradmesh.launch.child import Child, ChildSpec

Make = Callable[..., ChildSpec]


class Watch:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.gone = threading.Event()

    def line(self, name: str, line: str) -> None:
        self.lines.append((name, line))

    def exit(self, child: Child) -> None:
        self.gone.set()


def start(spec: ChildSpec, folder: Path) -> tuple[Child, Watch]:
    watch = Watch()
    return Child(spec, folder / "log", watch.line, watch.exit), watch


def test_output_goes_to_the_log_and_to_the_listener(spec: Make, tmp_path: Path) -> None:
    code = "import sys; print('a'); print('b', file=sys.stderr); sys.exit(7)"

    child, watch = start(spec("worker-0", code), tmp_path)

    assert watch.gone.wait(120)
    assert child.exit_code == 7
    assert sorted(watch.lines) == [("worker-0", "a"), ("worker-0", "b")]
    assert sorted((tmp_path / "log").read_text().split()) == ["a", "b"]


def test_terminate_lets_the_child_drain(
    spec: Make, tmp_path: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    child, watch = start(spec("worker-0"), tmp_path)
    until(lambda: ("worker-0", "ready") in watch.lines)

    child.terminate()

    assert child.wait(120)
    assert child.exit_code == 143
    assert watch.lines[-1] == ("worker-0", "drained")


def test_kill_is_described_by_its_signal(spec: Make, tmp_path: Path) -> None:
    child, _ = start(spec("worker-0"), tmp_path)

    child.kill()
    child.kill()

    assert child.wait(120)
    assert child.exit_code == 128 + signal.SIGKILL
    assert child.describe_end() == "was killed by SIGKILL"


def test_grandchildren_die_with_their_parent(
    spec: Make, tmp_path: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    code = (
        "import subprocess, sys; "
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print(p.pid, flush=True)"
    )

    child, watch = start(spec("worker-0", code), tmp_path)

    assert child.wait(120)
    pid = int(watch.lines[0][1])
    until(lambda: _is_dead(pid))


def test_child_has_a_session_of_its_own(spec: Make, tmp_path: Path) -> None:
    child, watch = start(
        spec("worker-0", "import os; print(os.getsid(0) == os.getpid())"), tmp_path
    )

    assert child.wait(120)
    assert watch.lines == [("worker-0", "True")]
    assert os.getsid(0) != child.pid


def test_environment_is_added(tmp_path: Path) -> None:
    spec = ChildSpec(
        name="worker-0",
        role="worker",
        argv=lambda: (sys.executable, "-c", "import os; print(os.environ['CAKE'])"),
        environment={"CAKE": "plum"},
    )

    child, watch = start(spec, tmp_path)

    assert child.wait(120)
    assert watch.lines == [("worker-0", "plum")]


def test_command_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    spec = ChildSpec(name="worker-0", role="worker", argv=lambda: (str(tmp_path / "none-such"),))

    with pytest.raises(FileNotFoundError):
        start(spec, tmp_path)


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
