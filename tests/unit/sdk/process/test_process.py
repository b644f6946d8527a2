import json
import resource
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

from gradmesh.sdk.process.process import raise_file_limit
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
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=120) as reply:
            health = reply.read()
        child.send_signal(signal.SIGTERM)
        _, logs = child.communicate(timeout=120)

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


def _raised_limit() -> tuple[int, tuple[int, int]]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    return raise_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)


def test_the_limit_of_open_files_is_raised(in_own_process: Callable[..., Any]) -> None:
    limit, (soft, hard) = in_own_process(_raised_limit)

    assert limit == soft == hard
