"""An emulated node whose pods are containers: the real image, hardened as the manifests say."""

import os
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tests.deploy.emulator.kubelet import Kubelet, Volumes
from tests.deploy.emulator.store import Objects
from tests.deploy.manifests import Object
from tests.e2e.compose import docker


class Attached(subprocess.Popen[bytes]):
    """A container whose output is read; SIGTERM is forwarded, SIGKILL goes through the engine."""

    container = ""

    def kill(self) -> None:
        docker("kill", self.container, check=False)


class DockerNode(Kubelet):
    """Runs pods as containers on a network of their own, where services have names."""

    def __init__(self, objects: Objects, folder: Path, images: set[str]) -> None:
        super().__init__(objects, folder, images)
        self.network = f"gradmesh-pods-{secrets.token_hex(4)}"
        docker("network", "create", self.network)

    def close(self) -> None:
        super().close()
        left = docker("ps", "-aq", "--filter", f"network={self.network}").split()
        if left:
            docker("rm", "-f", *left)
        docker("network", "rm", self.network)

    def address_of(self, pod: Object) -> str:
        form = f'{{{{(index .NetworkSettings.Networks "{self.network}").IPAddress}}}}'
        return docker("inspect", "-f", form, _name(pod), check=False)

    def launch(
        self,
        pod: Object,
        container: Object,
        values: dict[str, str],
        place: Volumes,
        log: BinaryIO,
    ) -> "subprocess.Popen[bytes]":
        if pod["spec"].get("automountServiceAccountToken", True):
            # The API server listens on this machine's loopback, which containers cannot reach.
            return super().launch(pod, container, values, place, log)
        docker("rm", "-f", _name(pod), check=False)
        security = pod["spec"]["securityContext"]
        for one in pod["spec"].get("initContainers", ()):
            paths = place.paths(one)
            docker(
                *("run", "--rm", *_flags(security, one), *_mounts(paths, security)),
                *("--entrypoint", one["command"][0], one["image"], *one["command"][1:]),
            )
        host = pod["spec"].get("hostname") or pod["metadata"]["name"]
        names = [host, *self._service_names(pod, host)]
        docker(
            *("create", "--name", _name(pod), "--hostname", host, "--network", self.network),
            *(flag for name in names for flag in ("--network-alias", name)),
            *_flags(security, container),
            *_mounts(place.paths(container), security),
            *(flag for name, value in values.items() for flag in ("--env", f"{name}={value}")),
            *(container["image"], *container["args"]),
        )
        attached = Attached(
            ["docker", "start", "--attach", _name(pod)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        attached.container = _name(pod)
        return attached

    def _service_names(self, pod: Object, host: str) -> list[str]:
        """Return the names of a pod in the cluster's DNS."""
        namespace, names = pod["metadata"]["namespace"], []
        for service in self._objects.list("services", namespace):
            chosen = service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
            name = service["metadata"]["name"]
            if chosen and service["spec"].get("clusterIP") == "None":
                names.append(f"{host}.{name}.{namespace}.svc")
            elif chosen:
                names.append(name)
        return names


def _name(pod: Object) -> str:
    return f"pod-{pod['metadata']['uid']}"


def _flags(security: Mapping[str, Any], container: Object) -> list[str]:
    own = container["securityContext"]
    assert own["readOnlyRootFilesystem"]
    assert not own["allowPrivilegeEscalation"]
    dropped = [flag for one in own["capabilities"]["drop"] for flag in ("--cap-drop", one)]
    user = f"{security['runAsUser']}:{security['runAsGroup']}"
    limit = container["resources"]["limits"]["memory"].removesuffix("i").lower()
    return [
        *("--read-only", "--security-opt", "no-new-privileges", *dropped),
        *("--user", user, "--memory", limit),
    ]


def _mounts(paths: Mapping[str, Path], security: Mapping[str, Any]) -> list[str]:
    flags: list[str] = []
    for inside, here in paths.items():
        # As fsGroup has it: the group may write.
        os.chown(here, -1, security["fsGroup"])
        here.chmod(0o2775)
        flags += ["--volume", f"{here}:{inside}"]
    return flags
