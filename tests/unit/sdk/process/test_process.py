import json
import platform
import resource
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import psutil

from gradmesh.sdk.process.process import keep_big_buffers, raise_file_limit, release_free_memory
from tests.own_process import in_own_process as in_own_process

CHILD = """
import sys
from gradmesh.sdk.process import LogConfig, MetricsConfig, Process, ProcessConfig
config = ProcessConfig(metrics=MetricsConfig(listen="127.0.0.1:0"), log=LogConfig(format="json"))
with Process("oven-0", config) as running:
    print(running.metrics_address, flush=True)
    running.life.wait()
sys.exit(running.life.exit_code)
"""


def test_process_says_its_configuration_serves_metrics_and_drains() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=20) as reply:
            health = reply.read()
        child.send_signal(signal.SIGTERM)
        _, logs = child.communicate(timeout=20)

    lines = [json.loads(line) for line in logs.splitlines()]
    assert health == b"ok\n"
    assert child.returncode == 143
    assert [line["message"] for line in lines] == [
        "starting",
        "serving metrics",
        "draining",
        "stopped",
    ]
    assert lines[0]["config"]["metrics"] == {"listen": "127.0.0.1:0"}
    assert {line["role"] for line in lines} == {"oven-0"}


def test_allocator_is_tuned_where_it_is_glibc() -> None:
    assert keep_big_buffers() is (platform.libc_ver()[0] == "glibc")


def _resident_after_release() -> tuple[int, int]:
    keep_big_buffers()
    blocks = [bytes(100_000) for _ in range(1000)]
    del blocks
    before = psutil.Process().memory_info().rss
    release_free_memory()
    return before, psutil.Process().memory_info().rss


def test_free_memory_returns_to_the_system(in_own_process: Callable[..., Any]) -> None:
    before, after = in_own_process(_resident_after_release)

    assert after < before - 50_000_000


def _raised_limit() -> tuple[int, tuple[int, int]]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    return raise_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)


def test_the_limit_of_open_files_is_raised(in_own_process: Callable[..., Any]) -> None:
    limit, (soft, hard) = in_own_process(_raised_limit)

    assert limit == soft == hard
