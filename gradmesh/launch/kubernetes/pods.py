"""The pods of a cluster: the state of its processes, and their logs."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, final

from gradmesh.launch.kubernetes.api import Api, Object
from gradmesh.launch.kubernetes.manifests import COMPONENT, INSTANCE, NAME
from gradmesh.launch.launcher import ProcessState, ProcessView
from gradmesh.launch.logs import LogSource, follow_sources

ROLES = ("coordinator", "parameter-server", "trainer")
_INDEX = ("apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index")
# Waiting reasons that persist without an action of the user.
_STUCK = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError")
_CRASHING = "CrashLoopBackOff"
_LOGS_POLL_S = 1.0


def selector(cluster: str) -> str:
    """Return the labels that all objects of a cluster have."""
    return f"{NAME}=gradmesh,{INSTANCE}={cluster}"


@final
class Pods:
    """The pods, StatefulSets and Job of a cluster at one moment.

    Args:
        api: The API of their namespace.
        cluster: Name of the cluster.
    """

    def __init__(self, api: Api, cluster: str) -> None:
        labels = selector(cluster)
        self.sets = {_role(one): one for one in api.find("StatefulSet", labels)}
        # Another Job makes the tokens.
        self.jobs = [one for one in api.find("Job", labels) if _role(one) in ROLES]
        pods = [pod for pod in api.find("Pod", labels) if _role(pod) in ROLES]
        # Oldest first: a later pod of an index replaces a former one.
        self.all = sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    @property
    def exist(self) -> bool:
        """Whether the cluster exists."""
        return bool(self.sets)

    def of(self, name: str) -> list[Object]:
        """Return the pods that a process ran in, the newest last."""
        return [pod for pod in self.all if process_name(pod) == name]

    def names(self) -> list[str]:
        """Return the names of all processes in the order of their start."""
        made = ["coordinator"] if "coordinator" in self.sets else []
        servers = self.sets.get("parameter-server")
        made += [
            f"parameter-server-{i}" for i in range(servers["spec"]["replicas"] if servers else 0)
        ]
        for job in self.jobs:
            made += [f"trainer-{i}" for i in range(job["spec"]["completions"])]
        # The pods of a JobSet do not belong to a Job of ours.
        others = sorted({process_name(pod) for pod in self.all} - set(made))
        return made + others

    def views(self) -> Sequence[ProcessView]:
        """Return the state of each process."""
        return [self._view(name) for name in self.names()]

    def _view(self, name: str) -> ProcessView:
        pods = self.of(name)
        role = next(role for role in ROLES if name.startswith(role))
        if not pods:
            return ProcessView(name=name, role=role, state="waiting")
        restarts = len(pods) - 1 + sum(_container(pod).get("restartCount", 0) for pod in pods)
        return ProcessView(
            name=name,
            role=role,
            state=self._state(pods[-1]),
            restarts=restarts,
            place=f"pod {pods[-1]['metadata']['name']}",
        )

    def _state(self, pod: Object) -> ProcessState:
        phase = pod.get("status", {}).get("phase")
        if phase == "Succeeded":
            return "done"
        if phase == "Running":
            return "running"
        return "failed" if phase == "Failed" and self.failure() else "waiting"

    def is_ready(self, name: str) -> bool:
        """Return whether a process serves."""
        pods = self.of(name)
        return bool(pods) and _container(pods[-1]).get("ready") is True

    def failure(self) -> str | None:
        """Return why the Job failed, if it did."""
        for job in self.jobs:
            for condition in job.get("status", {}).get("conditions") or ():
                if (
                    condition["type"] in ("Failed", "FailureTarget")
                    and condition["status"] == "True"
                ):
                    return str(condition.get("message") or condition.get("reason") or "it failed")
        return None

    def stuck(self) -> tuple[str, str] | None:
        """Return the first process that cannot start without an action of the user, and why."""
        for name in self.names():
            for pod in self.of(name)[-1:]:
                waiting = _container(pod).get("state", {}).get("waiting") or {}
                if waiting.get("reason") in (*_STUCK, _CRASHING):
                    return name, f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
        return None


@final
class PodLogs:
    """Reads the logs of a cluster's pods.

    Args:
        api: Where the pods are.
        cluster: Its name.
        names: Processes to read; all of them if empty.
    """

    def __init__(self, api: Api, cluster: str, names: Sequence[str]) -> None:
        self._api = api
        self._cluster = cluster
        self._names = names

    def written(self, tail: int | None) -> Iterator[tuple[str, str]]:
        """Yield process and line of the logs so far, process by process."""
        pods = Pods(self._api, self._cluster)
        for name in pods.names():
            if self._names and name not in self._names:
                continue
            lines = [
                line for pod in pods.of(name) for line in self._api.log(pod["metadata"]["name"])
            ]
            for line in lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]:
                yield name, line

    def follow(self, tail: int | None) -> Iterator[tuple[str, str]]:
        """Yield process and line as they arrive, until the cluster has ended."""
        return follow_sources(self._find, tail, _LOGS_POLL_S)

    def _find(self) -> tuple[list[LogSource], bool]:
        pods = Pods(self._api, self._cluster)
        sources = [
            LogSource(
                pod["metadata"]["uid"],
                process_name(pod),
                partial(self._follow, pod["metadata"]["name"]),
            )
            for pod in pods.all
            if not self._names or process_name(pod) in self._names
            if pod.get("status", {}).get("phase") not in (None, "Pending")
        ]
        return sources, pods.exist

    def _follow(self, pod: str, tail: int | None) -> Iterator[str]:
        try:
            yield from self._api.log(pod, follow=True, tail=tail)
        except (OSError, RuntimeError) as error:
            yield f"cannot follow the log of pod {pod}: {error}"


def process_name(pod: Object) -> str:
    """Return the name of the process in a pod."""
    labels, role = pod["metadata"]["labels"], _role(pod)
    if role == "coordinator":
        return role
    return f"{role}-{next((labels[key] for key in _INDEX if key in labels), '0')}"


def _role(made: Object) -> str:
    return str(made["metadata"]["labels"].get(COMPONENT, ""))


def _container(pod: Object) -> dict[str, Any]:
    found: list[dict[str, Any]] = pod.get("status", {}).get("containerStatuses") or [{}]
    return found[0]
