"""The objects of a cluster: those of deploy/base, with the requested name and size."""

import copy
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any, final

from gradmesh.launch.kubernetes.api import Object
from gradmesh.launch.kubernetes.files import Files
from gradmesh.launch.launcher import ClusterRequest
from gradmesh.launch.sections import variables
from gradmesh.protos.version import VERSION
from gradmesh.sdk.process.setting import settings
from gradmesh.trainer.job.spec import JOB_SECTIONS

IMAGE = f"gradmesh:{VERSION}"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
NAME = "app.kubernetes.io/name"
_FILES = ("coordinator.yaml", "parameter-server.yaml", "trainer.yaml", "network.yaml")
_BASE_NAME = "gradmesh"
# Names of objects; what is between them and a word's end are labels, images and paths.
_NAMED = re.compile(
    rf"\b{_BASE_NAME}-(coordinator|parameter-server|trainer|settings|job|deny|token)\b"
)
# Paths of this machine: pods have other paths for certificates, tokens and state folders.
_NOT_SENT = ("security.", "process.lifeline", "metrics.listen")
_CODE_PATH, _JOB_PATH = "/etc/gradmesh/code", "/etc/gradmesh/job"


@final
class Manifests:
    """The objects of a cluster.

    Args:
        name: Name of the cluster.
        request: Its size and settings.
        image: Image of the pods.
        files: Files for the trainers, if any.
    """

    def __init__(
        self, name: str, request: ClusterRequest, image: str, files: Files | None = None
    ) -> None:
        self._name = name
        self._request = request
        self._image = image
        self._files = files

    def objects(self) -> list[Object]:
        """Return all objects in the order in which they should be created."""
        base = [made for file in _FILES for made in _read_yaml(file)]
        if not self._request.trainers:
            base = [made for made in base if made["kind"] != "Job"]
        made = [*self._config_maps(), *(renamed(one, self._name) for one in base)]
        for one in made:
            if one["kind"] in ("StatefulSet", "Job"):
                self._fill_in(one)
        # Objects that pods refer to come first.
        return sorted(made, key=lambda one: one["kind"] in ("StatefulSet", "Job"))

    def _config_maps(self) -> list[Object]:
        given = variables(self._request.settings, without=_NOT_SENT)
        made = []
        for name, file in (("settings", "settings.env"), ("job", "job.env")):
            made.append(self._config_map(name, {**self._defaults(file), **given}))
        if self._files is not None:
            one = self._config_map("files", {})
            one["data"], one["binaryData"] = self._files.data()
            made.append(one)
        return made

    def _config_map(self, name: str, data: Mapping[str, str]) -> Object:
        labels = {NAME: _BASE_NAME, INSTANCE: self._name, COMPONENT: "settings"}
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{self._name}-{name}", "labels": labels},
            "data": dict(data),
        }

    def _defaults(self, file: str) -> dict[str, str]:
        """Return the base's settings without those of the user's file: variables override files."""
        values = read_env(file)
        if self._files is None:
            return values
        tables = self._files.tables()
        # A job of the user starts from the defaults of the settings, not from the demo's.
        own = {s.variable for section in JOB_SECTIONS for s in settings(section)}
        own |= {f"GRADMESH_{s}_{k}".upper() for s, table in tables.items() for k in table}
        return {name: value for name, value in values.items() if name not in own}

    def _fill_in(self, workload: Object) -> None:
        spec = workload["spec"]
        role = workload["metadata"]["labels"][COMPONENT]
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        for one in (container, *pod.get("initContainers", ())):
            one["image"] = self._image
        request = self._request
        if role == "coordinator":
            set_counts(container, request.parameter_servers, request.trainers)
        elif role == "parameter-server":
            spec["replicas"] = request.parameter_servers
        else:
            spec["completions"] = spec["parallelism"] = request.trainers
        if self._files is not None:
            self._mount(pod, container)

    def _mount(self, pod: Object, container: Object) -> None:
        assert self._files is not None
        name = f"{self._name}-files"
        for volume, path, items in (
            ("job", _JOB_PATH, self._files.job_items()),
            ("code", _CODE_PATH, self._files.code_items()),
        ):
            if items:
                source = {"name": name, "items": items}
                pod["volumes"].append({"name": volume, "configMap": source})
                container["volumeMounts"].append(
                    {"name": volume, "mountPath": path, "readOnly": True}
                )
        container["env"].append(
            {"name": "GRADMESH_CONFIG", "value": f"{_JOB_PATH}/{self._files.job}"}
        )
        if self._files.code_items():
            container["env"].append({"name": "PYTHONPATH", "value": _CODE_PATH})


def renamed(made: Object, name: str) -> Object:
    """Return an object of the base, renamed for a cluster of another name."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: name if key == INSTANCE else walk(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [walk(inner) for inner in value]
        if isinstance(value, str):
            return _NAMED.sub(lambda found: f"{name}-{found[1]}", value)
        return value

    result: Object = walk(copy.deepcopy(made))
    return result


def set_counts(container: Object, parameter_servers: int | None, trainers: int) -> None:
    """Set the numbers of servers and trainers that the coordinator waits for."""
    for one in container["env"]:
        if one["name"] == "GRADMESH_COORDINATOR_TRAINERS":
            one["value"] = str(trainers)
        if one["name"] == "GRADMESH_COORDINATOR_PARAMETER_SERVERS" and parameter_servers:
            one["value"] = str(parameter_servers)


def read_env(file: str) -> dict[str, str]:
    """Return the variables of a file of the base."""
    lines = _read(file).splitlines()
    return dict(line.split("=", 1) for line in lines if line.strip() and not line.startswith("#"))


def _read_yaml(file: str) -> list[Object]:
    # A dependency of the API's client.
    import yaml

    return [made for made in yaml.safe_load_all(_read(file)) if made]


def _read(file: str) -> str:
    folder = resources.files("gradmesh.launch.kubernetes") / "base"
    return (folder / file).read_text(encoding="utf-8")
