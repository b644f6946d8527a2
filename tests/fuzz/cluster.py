"""The cluster under test: a coordinator and a parameter server as processes, with tokens of roles."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradmesh.protos.rpcs import ROLES
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.transport.channel import Channel, Dialer
from tests.fuzz.batch import Finding
from tests.fuzz.rpc_frames import COORDINATOR, SERVER
from tests.fuzz.state import ClusterState
from tests.fuzz.watched_process import ROOT, WatchedProcess

NO_TOKEN, WRONG_TOKEN = "none", "wrong"
CALLERS = (*ROLES, NO_TOKEN, WRONG_TOKEN)
"""Who may call: a role, or a caller that cannot say who it is."""

MAX_FRAME_BYTES = 1 << 20

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
imports = ["tests.fuzz.functions"]
[log]
format = "json"
level = "error"
"""


class FuzzCluster:
    """Both processes and what must not change in them.

    Attributes:
        number: How often the processes were started; channels of an earlier number are gone.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self._write_settings()
        self.number = 0
        self._processes: list[WatchedProcess] = []
        self._channels: dict[tuple[str, str], Channel] = {}
        self._start()

    def _write_settings(self) -> None:
        (self._folder / "cluster.toml").write_text(_CONFIG)
        lines = "".join(f"{role}:token-of-{role}\n" for role in ROLES)
        (self._folder / "tokens").write_text(lines)
        for caller in CALLERS:
            (self._folder / f"{caller}.token").write_text(f"token-of-{caller}\n")

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
        self.state = ClusterState(self._coordinator, self.security("client"), server.wait_until)
        self.expected = self.state.digest()
        for process in self._processes:
            process.set_baseline()

    def _launch(self, name: str, role: str, *command: str) -> WatchedProcess:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GRADMESH_SECURITY_TOKEN_FILE": str(self._folder / f"{role}.token"),
        }
        config = ["--config", str(self._folder / "cluster.toml")]
        made = WatchedProcess(name, [*command, *config], self._folder, environment)
        self._processes.append(made)
        return made

    def security(self, caller: str) -> SecurityConfig | None:
        """Return the settings of a caller; None without a token."""
        if caller == NO_TOKEN:
            return None
        return SecurityConfig(token_file=self._folder / f"{caller}.token")

    def channel(self, caller: str, process: str) -> Channel:
        """Return the channel of a caller to a process; it uses gRPC alone."""
        key = (caller, process)
        if key not in self._channels:
            dial = Dialer(
                security=self.security(caller), lane="unary", max_frame_bytes=MAX_FRAME_BYTES * 2
            )
            if process == COORDINATOR:
                self._channels[key] = dial.coordinator(self._coordinator)
            else:
                self._channels[key] = dial(self.state.server_address, process)
        return self._channels[key]

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
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self.state.close()
        for process in self._processes:
            process.close()
        self._processes.clear()

    def close(self) -> None:
        """End both processes and remove their files."""
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def started_cluster() -> Iterator[FuzzCluster]:
    """Run a cluster for a while."""
    cluster = FuzzCluster()
    try:
        yield cluster
    finally:
        cluster.close()
