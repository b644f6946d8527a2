"""The cluster under test: a coordinator and a parameter server, with tokens of all roles."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gradmesh.protos.rpcs import ROLES
from gradmesh.sdk.process.network import SecurityConfig
from tests.fuzz.batch import Finding
from tests.fuzz.callers import CALLERS, MAX_FRAME_BYTES, FuzzCaller
from tests.fuzz.rpc_frames import COORDINATOR, SERVER
from tests.fuzz.state import ClusterState
from tests.fuzz.watched_process import ROOT, WatchedProcess

FUNCTIONS = "tests.fuzz.functions"
"""Module with what the parameter server lets others call."""

_CONFIG = f"""
[security]
tokens_file = "tokens"
[coordinator]
listen = "127.0.0.1:0"
address_file = "address"
parameter_servers = 1
trainers = 1
lease_s = 60
[parameter_server]
name = "parameter-server-0"
max_frame_bytes = {MAX_FRAME_BYTES}
max_store_bytes = {64 << 20}
snapshot_bytes = {16 << 20}
state_dir = "state"
[rpc]
imports = IMPORTS
[log]
format = "json"
level = "error"
"""


class FuzzCluster:
    """Both processes and what must not change in them.

    Args:
        imports: Modules that the parameter server imports.

    Attributes:
        number: How often the processes were started; channels of an earlier number are gone.
    """

    def __init__(self, imports: Sequence[str] = (FUNCTIONS,)) -> None:
        self._imports = list(imports)
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self._write_settings()
        self.number = 0
        self._processes: list[WatchedProcess] = []
        self._callers: dict[str, FuzzCaller] = {}
        self._start()

    def _write_settings(self) -> None:
        (self._folder / "cluster.toml").write_text(
            _CONFIG.replace("IMPORTS", json.dumps(self._imports))
        )
        lines = "".join(f"{role}:token-of-{role}\n" for role in ROLES)
        (self._folder / "tokens").write_text(lines)
        for caller in CALLERS:
            self._token(caller).write_text(f"token-of-{caller}\n")

    def _start(self) -> None:
        self.number += 1
        shutil.rmtree(self._folder / "state", ignore_errors=True)
        address = self._folder / "address"
        address.unlink(missing_ok=True)
        coordinator = self._launch(COORDINATOR, "admin", "coordinator")
        coordinator.wait_until(address.exists)
        self._coordinator = address.read_text().strip()
        server = self._launch(
            SERVER, "parameter-server", "parameter-server", "--coordinator", self._coordinator
        )
        security = SecurityConfig(token_file=self._token("client"))
        self.state = ClusterState(self._coordinator, security, server.wait_until)
        self.expected = self.state.digest()
        for process in self._processes:
            process.set_baseline()

    def _launch(self, name: str, role: str, *command: str) -> WatchedProcess:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GRADMESH_SECURITY_TOKEN_FILE": str(self._token(role)),
        }
        config = ["--config", str(self._folder / "cluster.toml")]
        made = WatchedProcess(name, [*command, *config], self._folder, environment)
        self._processes.append(made)
        return made

    def caller(self, name: str) -> FuzzCaller:
        """Return a caller, one of `CALLERS`; it connects when it is first asked for."""
        if name not in self._callers:
            self._callers[name] = FuzzCaller(
                name, self._coordinator, self.state.server_address, self._token(name)
            )
        return self._callers[name]

    def _token(self, caller: str) -> Path:
        return self._folder / f"{caller}.token"

    def reconnect(self) -> None:
        """Let all callers connect again."""
        for caller in self._callers.values():
            caller.close()
        self._callers.clear()

    def examine(self) -> list[Finding]:
        """Return what the last frames did that they must not do.

        The processes are started again after a finding, so that it is reported once.
        """
        found = [text for process in self._processes for text in process.problems()]
        if not any(" ended with " in text for text in found):
            found += self.state.differences(self.expected)
        if found:
            self._stop()
            self._start()
        return [Finding(text) for text in found]

    def _stop(self) -> None:
        self.reconnect()
        self.state.close()
        for process in self._processes:
            process.close()
        self._processes.clear()

    def close(self) -> None:
        """End both processes and remove their files."""
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def started_cluster(imports: Sequence[str] = (FUNCTIONS,)) -> Iterator[FuzzCluster]:
    """Run a cluster for a while."""
    cluster = FuzzCluster(imports)
    try:
        yield cluster
    finally:
        cluster.close()
