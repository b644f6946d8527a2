"""A coordinator with tokens in a process of its own, as attackers and members see it."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from gradmesh.protos.coordinator.v1 import coordinator_pb2, status_pb2
from gradmesh.protos.method import methods_of
from gradmesh.sdk.mesh.connect import join_mesh
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.transport.channel import Channel, Dialer
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.metrics import RpcMetrics

METHODS = methods_of(coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"])
TOKENS = {role: f"secret-of-{role}" for role in ("trainer", "client", "admin")}


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 40) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.02)


class GuardedCoordinator:
    """A coordinator process that asks for tokens.

    Args:
        folder: For its files.
        files: Soft limit of open files with which it starts.
        settings: Further variables of its environment.
    """

    def __init__(self, folder: Path, files: int | None = None, **settings: str) -> None:
        tokens = folder / "tokens"
        tokens.write_text("".join(f"{role}:{token}\n" for role, token in TOKENS.items()))
        self._folder = folder
        command = [sys.executable, "-m", "gradmesh", "coordinator", "--listen", "127.0.0.1:0"]
        command += ["--address-file", str(folder / "address"), "--tokens-file", str(tokens)]
        command += ["--metrics-listen", "127.0.0.1:0", "--log-format", "json", "--lease-s", "3"]
        if files is not None:
            # The shell lowers the soft limit only.
            command = ["sh", "-c", f'ulimit -S -n {files}; exec "$@"', "sh", *command]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | settings | {"GRADMESH_PROCESS_LIFELINE": "true"},
        )
        self._metrics = ""
        self.log: list[dict[str, Any]] = []
        threading.Thread(target=self._read_log, daemon=True).start()
        wait_until(lambda: bool(self._metrics) and (folder / "address").exists(), "it serves")
        self.address = (folder / "address").read_text().strip()
        self.status()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            entry = json.loads(line) if line.startswith(b"{") else {"message": line.decode()}
            if entry["message"] == "serving metrics":
                self._metrics = entry["address"]
            self.log.append(entry)

    def security(self, role: str) -> SecurityConfig:
        file = self._folder / role
        file.write_text(TOKENS[role])
        return SecurityConfig(token_file=file)

    def dial(self, role: str) -> Channel:
        return Channel(self.address, "coordinator", security=self.security(role))

    def status(self, channel: Channel | None = None) -> Any:
        """Make a call with a token on a connection of its own, or on a given one."""
        request, deadline = status_pb2.GetStatusRequest(), Deadline.after(30)
        if channel is not None:
            return channel.call(METHODS["GetStatus"], request, deadline)
        with self.dial("admin") as own:
            return own.call(METHODS["GetStatus"], request, deadline)

    def healthz(self) -> int:
        try:
            with urllib.request.urlopen(f"http://{self._metrics}/healthz", timeout=120) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    @property
    def metrics_address(self) -> str:
        return self._metrics

    def probe_socket(self) -> str:
        """Return the name of the unix socket on which the process probes itself."""
        lines = Path("/proc/net/unix").read_text().splitlines()
        names = {line.rpartition(" ")[2].lstrip("@") for line in lines}
        prefix = f"gradmesh-health-{self._process.pid}-"
        return next(name for name in names if name.startswith(prefix))

    def _of_process(self, key: str) -> int:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))

    def resident_mib(self) -> float:
        return self._of_process("VmRSS") / 1024

    def threads(self) -> int:
        return self._of_process("Threads")

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=120)


class Member:
    """A trainer that has joined a guarded coordinator and renews its lease."""

    def __init__(self, coordinator: GuardedCoordinator, name: str) -> None:
        self._registry = CollectorRegistry()
        metrics = RpcMetrics("client", self._registry)
        dial = Dialer(security=coordinator.security("trainer"), metrics=metrics)
        self._mesh = join_mesh(
            coordinator.address, name=name, role="trainer", address="127.0.0.1:1", dial=dial
        )

    def renewals(self) -> float:
        """Return how often the lease has been renewed."""
        labels = {"rpc": METHODS["RenewLease"].path, "status": "OK", "lane": "unary"}
        return self._registry.get_sample_value("gradmesh_rpc_client_calls_total", labels) or 0.0

    def wait_for_renewals(self, more: int = 2) -> None:
        """Wait until the lease has been renewed some times more."""
        wanted = self.renewals() + more
        wait_until(lambda: self.renewals() >= wanted, "the lease is renewed")

    def close(self) -> None:
        self._mesh.close()
