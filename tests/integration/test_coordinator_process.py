"""The coordinator as a process, from the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

GRADMESH = (sys.executable, "-m", "gradmesh")


@contextmanager
def coordinator(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    file = folder / "address"
    argv = (*GRADMESH, "coordinator", "--listen", "127.0.0.1:0", "--address-file", str(file))
    with subprocess.Popen(
        [*argv, *flags], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            deadline = time.monotonic() + 30
            while not file.exists():
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield process, file.read_text().strip()
        finally:
            process.kill()


def gradmesh(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GRADMESH, *arguments], capture_output=True, text=True, timeout=120)


def test_status_of_a_running_coordinator(tmp_path: Path) -> None:
    with coordinator(tmp_path) as (_, address):
        plain = gradmesh("status", "--coordinator", address)
        shown = gradmesh("status", "--coordinator", address, "--json")

    assert plain.returncode == shown.returncode == 0
    assert f"coordinator {address}" in plain.stdout
    assert json.loads(shown.stdout)["coordinator"] == address


@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "lifeline"])
def test_coordinator_drains_on_a_signal(tmp_path: Path, end: str) -> None:
    flags = ("--lifeline",) if end == "lifeline" else ()
    with coordinator(tmp_path, *flags) as (process, _):
        if end == "lifeline":
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(getattr(signal, end))

        assert process.wait(120) == (130 if end == "SIGINT" else 143)
        assert process.stderr is not None
        messages = [json.loads(line)["message"] for line in process.stderr]
        assert messages[0] == "starting"
        assert messages[-1] == "stopped"


def test_port_in_use_is_named_and_exits_with_2(tmp_path: Path) -> None:
    with coordinator(tmp_path) as (_, address):
        second = gradmesh("coordinator", "--listen", address)

    assert second.returncode == 2
    error = second.stderr.splitlines()[-1]
    assert error.startswith(f"error: cannot listen on {address!r}")
    assert "set listen to another address" in error or "coordinator.listen" in error


def test_unreachable_coordinator_exits_with_3() -> None:
    done = gradmesh("status", "--coordinator", "127.0.0.1:1", "--timeout-s", "0.5")

    assert done.returncode == 3
    assert done.stderr.startswith("error: coordinator at 127.0.0.1:1")
    assert len(done.stderr.splitlines()) == 1


def test_wrong_token_exits_with_2(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("a-token-that-is-long-enough-0123456789")
    bad.write_text("another-token-long-enough-0123456789")
    for file in (good, bad):
        os.chmod(file, 0o600)

    with coordinator(tmp_path, "--token-file", str(good)) as (_, address):
        refused = gradmesh("status", "--coordinator", address, "--token-file", str(bad))
        served = gradmesh("status", "--coordinator", address, "--token-file", str(good))

    assert (refused.returncode, served.returncode) == (2, 0)
    assert "token" in refused.stderr
