"""A compose cluster for tests: its own project, its own settings, nothing left behind."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_LABEL = "com.docker.compose.project"


def docker(*arguments: str, timeout_s: float = 120, check: bool = True) -> str:
    # Processes log to standard error, and `docker logs` keeps the two apart.
    merged = subprocess.STDOUT if arguments[0] == "logs" else subprocess.PIPE
    done = subprocess.run(
        ["docker", *arguments],
        stdout=subprocess.PIPE,
        stderr=merged,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert not check or done.returncode == 0, f"docker {arguments}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def compose_command() -> list[str]:
    """Return `docker compose`, or Debian's docker-compose 1.29 where the plugin is missing."""
    v2 = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    return ["docker", "compose"] if v2.returncode == 0 else ["docker-compose"]


def until(condition: Callable[[], Any], within_s: float) -> Any:
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {condition}"
        time.sleep(0.1)
    return value


class Compose:
    """A project of docker-compose.yml; settings are variables, as a user would set them."""

    def __init__(self, project: str, **settings: object) -> None:
        self.project = project
        self._command = [*compose_command(), "-p", project]
        # Any free port, so that tests may run beside a cluster of the user.
        self._settings = {"COORDINATOR_PORT": "", **{k: str(v) for k, v in settings.items()}}

    def run(self, *arguments: str, timeout_s: float = 120, check: bool = True) -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=ROOT,
            env={**os.environ, **self._settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"compose {arguments}:\n{done.stdout}"
        return done.stdout

    def containers(self, service: str) -> list[str]:
        """Return the ids of a service's containers, also of those that have ended."""
        found = docker("ps", "-aq", "--no-trunc", *self._mine(), *_service(service))
        return sorted(found.split())

    def inspect(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(docker("inspect", container))[0]
        return found

    def state(self, container: str) -> dict[str, Any]:
        state: dict[str, Any] = self.inspect(container)["State"]
        return state

    def lines(self, service: str) -> list[str]:
        """Return the log of a service."""
        # Not by compose: its older version takes a second to start, and this is called often.
        containers = self.containers(service)
        return [line for one in containers for line in docker("logs", one).splitlines()]

    def kill_process(self, container: str) -> None:
        """Kill -9 everything in a container, as the kernel's out-of-memory killer would.

        `docker kill` would do for the process, but the engine does not restart what a user killed.
        """
        docker("exec", container, "sh", "-c", "kill -9 -1", check=False)

    def ended_with(self, container: str, within_s: float) -> int:
        state = until(lambda: _ended(self.state(container)), within_s)
        return int(state["ExitCode"])

    def output(self, folder: Path) -> Path:
        """Copy the output of the job."""
        docker("cp", f"{self.containers('trainer')[0]}:/var/lib/gradmesh/output", str(folder))
        return folder

    def left(self) -> dict[str, str]:
        """Return the objects of this project that the engine still has."""
        return {
            "containers": docker("ps", "-aq", *self._mine()),
            "volumes": docker("volume", "ls", "-q", *self._mine()),
            "networks": docker("network", "ls", "-q", *self._mine()),
        }

    def _mine(self) -> tuple[str, ...]:
        return ("--filter", f"label={_LABEL}={self.project}")


@contextmanager
def running(project: str, *up: str, **settings: object) -> Iterator[Compose]:
    """Start a project, and remove it with all its objects in any case."""
    compose = Compose(project, **settings)
    compose.run("down", "-v", "-t", "5", check=False)
    try:
        compose.run("up", "-d", "--no-build", *up)
        yield compose
    finally:
        compose.run("down", "-v", "-t", "20")


def _service(name: str) -> tuple[str, ...]:
    return ("--filter", f"label=com.docker.compose.service={name}")


def _ended(state: dict[str, Any]) -> dict[str, Any] | None:
    return state if state["Status"] == "exited" else None
