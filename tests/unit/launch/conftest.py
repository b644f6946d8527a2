import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gradmesh.launch.child import ChildSpec
from gradmesh.launch.supervisor import Supervisor

# A child that behaves like the real ones: it holds its lifeline and drains on SIGTERM.
STEADY = """
import sys
from gradmesh.sdk.process.process import Lifecycle, LifecycleConfig
with Lifecycle(LifecycleConfig(lifeline=True)) as life:
    print("ready", flush=True)
    life.wait()
print("drained", flush=True)
sys.exit(life.exit_code)
"""


@pytest.fixture
def spec() -> Callable[..., ChildSpec]:
    def make(
        name: str, code: str = STEADY, *arguments: str, role: str = "worker", **more: object
    ) -> ChildSpec:
        argv = (sys.executable, "-c", code, *arguments)
        return ChildSpec(name=name, role=role, argv=lambda: argv, **more)  # type: ignore[arg-type]

    return make


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.01)

    return wait


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervisor]]:
    started: list[Supervisor] = []

    def start(specs: Sequence[ChildSpec], **options: object) -> Supervisor:
        supervisor = Supervisor(specs, lambda name: tmp_path / name, **options)  # type: ignore[arg-type]
        started.append(supervisor)
        supervisor.start()
        return supervisor

    yield start
    for supervisor in started:
        supervisor.kill()
        assert supervisor.wait(120) is not None
