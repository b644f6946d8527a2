"""The plan of a local cluster: the children, their command lines and their order."""

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from gradmesh.launch.authentication import configured, needs_token
from gradmesh.launch.child import ChildSpec
from gradmesh.launch.sections import command, flags, role_sections
from gradmesh.launch.state import StateFolder
from gradmesh.sdk.process.network import join, split
from gradmesh.services.config import ParameterServerConfig

SERVER_ROLE = "parameter-server"

_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The size and settings of a local cluster.

    Attributes:
        parameter_servers: Number of parameter servers, at least one.
        trainers: Number of trainers, may be 0.
        workers: Number of workers, may be 0.
        config: TOML file that all processes read.
        listen: Listen address of the coordinator; port 0 takes a free one.
        settings: More settings by `section.key`.
        job: Identifies the run to trainers that restart after its end; settings, file and
            environment override it.
    """

    parameter_servers: int
    trainers: int
    workers: int = 0
    config: Path | None = None
    listen: str = "127.0.0.1:0"
    settings: Mapping[str, Any] = field(default_factory=dict)
    job: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        if self.parameter_servers < 1 or self.trainers < 0 or self.workers < 0:
            raise ValueError(
                "expected parameter_servers of at least 1, trainers and workers of at least 0, "
                f"got {self.parameter_servers}, {self.trainers} and {self.workers}"
            )

    def specs(self, folder: StateFolder) -> list[ChildSpec]:
        """Return the children in the order of their start."""
        servers = [self.server(folder, rank) for rank in range(self.parameter_servers)]
        trainers = [self._worker(folder, "trainer", rank) for rank in range(self.trainers)]
        workers = [self._worker(folder, "worker", rank) for rank in range(self.workers)]
        return [self._coordinator(folder), *servers, *trainers, *workers]

    def server(self, folder: StateFolder, number: int) -> ChildSpec:
        """Return the specification of a parameter server, initial or added later."""
        return self._worker(folder, SERVER_ROLE, number)

    def _coordinator(self, folder: StateFolder) -> ChildSpec:
        def argv() -> Sequence[str]:
            own = {
                **self._shared(folder),
                # After a restart the others must reach it at the same address.
                "coordinator.listen": folder.address() or self.listen,
                "coordinator.state_dir": folder.coordinator,
                "coordinator.address_file": folder.address_file,
                "coordinator.parameter_servers": self.parameter_servers,
                # A cluster without trainers of its own may expect the user's.
                "coordinator.trainers": self.trainers
                or self.settings.get("coordinator.trainers", 0),
            }
            arguments = flags(own, role_sections("coordinator"))
            return command("coordinator", *arguments, config=self.config)

        return ChildSpec(
            name="coordinator",
            role="coordinator",
            argv=argv,
            ready=lambda: self._is_served(folder),
        )

    def _is_served(self, folder: StateFolder) -> bool:
        """Return whether the coordinator serves; once it does, clients can find the token."""
        address = reachable_address(folder)
        if address is not None:
            folder.publish_token(address)
        return address is not None

    def _worker(self, folder: StateFolder, role: str, rank: int) -> ChildSpec:
        name, sections = f"{role}-{rank}", role_sections(role)
        own = sections[0].section

        def argv() -> Sequence[str]:
            values = {
                **self._own_job(),
                **self._shared(folder),
                **self._free_metrics_port(),
                f"{own}.name": name,
                # The supervisor starts a process only when the former one of its name has ended.
                f"{own}.replace": True,
                # Only one of them could bind a port from the file.
                f"{own}.listen": "127.0.0.1:0",
                "transport.lane_port": 0,
                f"{own}.advertise": "none",
                f"{own}.coordinator": reachable_address(folder),
                f"{own}.rank": rank,
            }
            if own == ParameterServerConfig.section:
                values[f"{own}.state_dir"] = folder.parameter_servers / name
            return command(role, *flags(values, sections), config=self.config)

        return ChildSpec(
            name=name,
            role=role,
            argv=argv,
            environment=self._thread_limit(),
            finite=role == "trainer",
        )

    @property
    def makes_token(self) -> bool:
        """Whether the cluster needs a token of its own: no other authentication is configured."""
        return needs_token(self.settings, os.environ, self.config)

    def _shared(self, folder: StateFolder) -> dict[str, Any]:
        token = {"security.token_file": folder.token_file} if self.makes_token else {}
        # The supervisor reads its children's logs, and renders them in the user's format.
        return {**self.settings, **token, "log.format": "json"}

    def _own_job(self) -> dict[str, str]:
        return {"job.id": self.job} if self._configured("job", "id") is None else {}

    def _free_metrics_port(self) -> dict[str, str]:
        # Processes cannot share one address: the coordinator gets it, the others a free port.
        listen = self._configured("metrics", "listen") or "off"
        return {} if listen == "off" else {"metrics.listen": join(split(listen)[0], 0)}

    def _configured(self, section: str, name: str) -> Any:
        return configured(section, name, self.settings, os.environ, self.config)

    def _thread_limit(self) -> dict[str, str]:
        # More BLAS threads than cores wait for each other.
        if "OMP_NUM_THREADS" in os.environ:
            return {}
        share = len(os.sched_getaffinity(0)) // max(1, self.trainers)
        return {"OMP_NUM_THREADS": str(max(1, share))}


def reachable_address(folder: StateFolder) -> str | None:
    """Return the coordinator's address for processes of this machine; None before it serves."""
    address = folder.address()
    if address is None:
        return None
    host, port = split(address)
    return join(_ANY_HOST.get(host, host), port)
