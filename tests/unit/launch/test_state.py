import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradmesh.launch.errors import StateInUse
from gradmesh.launch.state import StateFolder, start_ticks

LOCKER = """
import pathlib, sys
from gradmesh.launch.state import StateFolder
folder = StateFolder(pathlib.Path(sys.argv[1]))
folder.lock()
folder.write({"pid": __import__("os").getpid(), "children": []})
print("locked", flush=True)
sys.stdin.read()
"""


def test_two_clusters_cannot_share_a_folder(tmp_path: Path) -> None:
    first, second = StateFolder(tmp_path), StateFolder(tmp_path)
    first.lock()
    first.write({"pid": 42})

    with pytest.raises(StateInUse, match=r"supervisor process 42.*gradmesh down --state"):
        second.lock()

    first.unlock()
    assert second.lock() is False
    second.unlock()


def test_folder_of_a_killed_supervisor_is_taken_over(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert folder.in_use()
        assert folder.supervisor_pid() == other.pid
        other.kill()

    assert not folder.in_use()
    assert folder.lock() is True
    assert folder.read() is None
    folder.unlock()


def test_orphans_of_a_killed_supervisor_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradmesh.launch.state._ORPHAN_S", 0.1)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as orphan:
        children = [
            {"name": "a", "pid": orphan.pid, "start_ticks": start_ticks(orphan.pid)},
            {"name": "b", "pid": os.getpid(), "start_ticks": 1},
        ]
        (tmp_path / "cluster.json").write_text(json.dumps({"pid": 1, "children": children}))
        folder = StateFolder(tmp_path)

        folder.lock()

        assert orphan.wait(120) == -9
    folder.unlock()


def test_unlock_leaves_only_logs_behind(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.lock()
    folder.write({"pid": 1})
    folder.address_file.write_text("127.0.0.1:1\n")
    folder.coordinator.mkdir()
    folder.log_file("trainer-0").write_text("x\n")

    folder.unlock()
    folder.unlock()

    assert sorted(os.listdir(tmp_path)) == ["lock", "logs"]
    assert folder.tail("trainer-0") == ("x",)


def test_folder_that_does_not_exist_is_not_in_use(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "none")

    assert not folder.in_use()
    assert folder.read() is None
    assert folder.address() is None
    assert folder.tail("coordinator") == ()


def test_tail_returns_the_last_lines(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.lock()
    folder.log_file("a").write_text("".join(f"{i}\n" for i in range(100_000)))

    assert folder.tail("a", 2) == ("99998", "99999")
    folder.unlock()
