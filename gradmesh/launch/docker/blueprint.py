"""The arguments of each container of a cluster: variables, volumes, restart policy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from gradmesh.launch.authentication import needs_token
from gradmesh.launch.docker.engine import Engine
from gradmesh.launch.job_secrets import read_job_file, refuse_secrets
from gradmesh.launch.launcher import ClusterRequest
from gradmesh.launch.sections import variables
from gradmesh.protos.version import VERSION
from gradmesh.sdk.process.setting import ConfigError, Problem

IMAGE = f"gradmesh:{VERSION}"
COORDINATOR_PORT = 7070
_STATE = "/var/lib/gradmesh/state"
_JOB = "/etc/gradmesh/job"
_PORTS = {"parameter-server": 7071, "trainer": 7072, "worker": 7073}
# As in a local cluster; the engine resets the count when a container has lived for ten seconds.
_MOST_RESTARTS = 8
# Settings of this machine, or set by the launcher.
_NOT_SENT = ("process.lifeline", "metrics.listen", "log.format")
_SECRETS = "/etc/gradmesh/security"
_REMEDY = (
    "keep them outside its folder, and give them as flags or variables, such as --token-file FILE: "
    "each is then mounted by itself, read-only"
)
_TOKEN = "/var/lib/gradmesh/token"
TOKEN_FILE = f"{_TOKEN}/token"
"""The cluster's token in its containers."""


@final
class Blueprint:
    """Makes the arguments of containers.

    Args:
        engine: The engine that runs them.
        image: Image of the containers.
        request: Size and settings of the cluster.
    """

    def __init__(self, engine: Engine, image: str, request: ClusterRequest) -> None:
        self._engine = engine
        self._image = image
        self._request = request
        # Of this machine's variables only the settings are sent.
        self._makes_token = needs_token(request.settings, {}, request.config)

    def token_maker(self) -> dict[str, Any] | None:
        """Return the arguments of a container that makes the token; None if none is needed."""
        if not self._makes_token:
            return None
        return {
            "image": self._image,
            "command": ["token", TOKEN_FILE],
            "volumes": {self._engine.make_volume("token"): {"bind": _TOKEN, "mode": "rw"}},
            "network_mode": "none",
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "remove": True,
        }

    def check(self) -> None:
        """Check that no secrets are in the job's file, or in its folder, which containers see.

        Raises:
            ConfigError: It names some, or they are in its folder, or it cannot be read.
        """
        job = self._request.config
        if job is None:
            return
        refuse_secrets(job, read_job_file(job), _REMEDY)
        folder = job.absolute().parent.resolve()
        problems = [
            Problem(key, f"names a file in the folder of {job}, which containers see; {_REMEDY}")
            for key, file, _ in self._secrets()
            if file.resolve().is_relative_to(folder)
        ]
        if problems:
            raise ConfigError(problems)

    def processes(self) -> list[tuple[str, str]]:
        """Return role and name of each process in the order of their start."""
        sizes = {
            "parameter-server": self._request.parameter_servers,
            "trainer": self._request.trainers,
            "worker": self._request.workers,
        }
        rest = [(role, f"{role}-{rank}") for role, size in sizes.items() for rank in range(size)]
        return [("coordinator", "coordinator"), *rest]

    def container(self, role: str, process: str, port: int = 0) -> dict[str, Any]:
        """Return the arguments of a container.

        Args:
            role: Role of the process.
            process: Name of the process, which is its host name, too.
            port: Published port on this machine; 0 for none.
        """
        name, client = self._engine.name, self._engine.client
        aliases = client.api.create_endpoint_config(aliases=[process])
        return {
            "image": self._image,
            "command": [role],
            "name": f"{name}-{process}",
            "hostname": process,
            "labels": self._engine.labels(role, process),
            "environment": self._environment(role, process),
            "volumes": self._volumes(role, process),
            "ports": {f"{COORDINATOR_PORT}/tcp": ("127.0.0.1", port)} if port else {},
            "network": name,
            "networking_config": {name: aliases},
            "restart_policy": self._policy(role),
            "init": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "detach": True,
        }

    def _environment(self, role: str, process: str) -> dict[str, str]:
        request = self._request
        given = {**request.settings, **{key: inside for key, _, inside in self._secrets()}}
        own: dict[str, Any] = {"log.format": "json", "metrics.listen": "0.0.0.0:9090"}
        if role == "coordinator":
            own |= {
                "coordinator.listen": f"0.0.0.0:{COORDINATOR_PORT}",
                "coordinator.state_dir": _STATE,
                "coordinator.parameter_servers": request.parameter_servers,
                "coordinator.trainers": request.trainers or given.get("coordinator.trainers", 0),
            }
        else:
            section, port = role.replace("-", "_"), _PORTS[role]
            own |= {
                f"{section}.name": process,
                f"{section}.listen": f"0.0.0.0:{port}",
                f"{section}.advertise": f"{process}:{port}",
                f"{section}.coordinator": f"coordinator:{COORDINATOR_PORT}",
                # The engine restarts a container only when its process has ended.
                f"{section}.replace": True,
            }
        if self._makes_token:
            # The network is a bridge of this machine.
            own |= {"security.token_file": TOKEN_FILE, "security.allow_plaintext_token": True}
        if role == "parameter-server":
            own["parameter_server.state_dir"] = _STATE
        if role == "worker":
            own["worker.rank"] = int(process.rpartition("-")[2])
        sent = variables(given, without=_NOT_SENT) | variables(own)
        return {**sent, **self._threads(role), **self._config()}

    def _threads(self, role: str) -> Mapping[str, str]:
        # More BLAS threads than cores wait for each other.
        if role != "trainer":
            return {}
        share = int(self._engine.client.info()["NCPU"]) // max(1, self._request.trainers)
        return {"OMP_NUM_THREADS": str(max(1, share))}

    def _config(self) -> Mapping[str, str]:
        if self._request.config is None:
            return {}
        return {"GRADMESH_CONFIG": f"{_JOB}/{self._request.config.name}", "PYTHONPATH": _JOB}

    def _volumes(self, role: str, process: str) -> dict[str, dict[str, str]]:
        volumes = {}
        if role in ("coordinator", "parameter-server"):
            volumes[self._engine.make_volume(process)] = {"bind": _STATE, "mode": "rw"}
        if self._makes_token:
            volumes[self._engine.volume_name("token")] = {"bind": _TOKEN, "mode": "ro"}
        for _, file, inside in self._secrets():
            volumes[str(file)] = {"bind": inside, "mode": "ro"}
        if self._request.config is not None:
            folder: Path = self._request.config.absolute().parent
            volumes[str(folder)] = {"bind": _JOB, "mode": "ro"}
        return volumes

    def _secrets(self) -> list[tuple[str, Path, str]]:
        """Return setting, file of this machine and path in the container of each secret."""
        return [
            (key, Path(value).absolute(), f"{_SECRETS}/{key.partition('.')[2]}")
            for key, value in self._request.settings.items()
            if key.startswith("security.") and key.endswith("_file") and value is not None
        ]

    def _policy(self, role: str) -> dict[str, Any]:
        if role == "trainer":
            return {"Name": "on-failure", "MaximumRetryCount": _MOST_RESTARTS}
        return {"Name": "unless-stopped"}
