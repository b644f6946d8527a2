"""The launcher of Kubernetes: a cluster is a set of objects with its name in a namespace."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, final

from gradmesh.launch.errors import CannotScale, ClusterExists, ClusterFailed, NoCluster
from gradmesh.launch.foreground import follow_remote
from gradmesh.launch.job_secrets import secret_files
from gradmesh.launch.kubernetes.api import Api, KubernetesOptions, Object
from gradmesh.launch.kubernetes.errors import (
    KubernetesRejected,
    NamespaceMissing,
    NotOnKubernetes,
)
from gradmesh.launch.kubernetes.files import Files, files_of
from gradmesh.launch.kubernetes.forward import close_forward, forwarded
from gradmesh.launch.kubernetes.manifests import IMAGE, Manifests
from gradmesh.launch.kubernetes.pods import PodLogs, Pods, selector
from gradmesh.launch.kubernetes.secrets import (
    reader_secret,
    reader_token_name,
    token_in,
    token_name,
    token_secret,
)
from gradmesh.launch.launcher import ClusterRequest, ClusterView, Launcher, Role
from gradmesh.sdk.process.local_token import publish_until_exit

_log = logging.getLogger(__name__)

_POLL_S = 0.5
_PORT = 7070
_TAIL = 20
_CONFLICT, _NOT_FOUND = 409, 404
# In the order of removal; objects that pods refer to come last.
_KINDS = (
    "Job",
    "StatefulSet",
    "PodDisruptionBudget",
    "Service",
    "NetworkPolicy",
    "ConfigMap",
    "ServiceAccount",
    "PersistentVolumeClaim",
)


def _files(request: ClusterRequest) -> Files | None:
    if request.config is None:
        return None
    return files_of(request.config, (), secret_files(request.settings))


@final
class KubernetesLauncher(Launcher):
    """Runs a cluster in a namespace of Kubernetes.

    Args:
        name: Name of the cluster; several may share a namespace.
        options: Kubernetes cluster and namespace.
        ready_s: Seconds that a coordinator may take to serve, the pull of its image included.
    """

    # A port that this process forwards.
    address_lasts: ClassVar[bool] = False

    def __init__(self, name: str, options: KubernetesOptions, ready_s: float = 600.0) -> None:
        self.name = name
        self._options = options
        self._api = Api(options)
        self._ready_s = ready_s
        # Whether this launcher has created objects, which it then has to remove.
        self.created = False
        self._published = ""

    def up(self, request: ClusterRequest) -> str:
        """Create the objects of a cluster, and wait for its coordinator."""
        files = _files(request)
        if request.until_done:
            raise NotOnKubernetes("--exit-when-done needs a process that waits; leave out --detach")
        return self.create(request, files)

    def create(
        self,
        request: ClusterRequest,
        files: Files | None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> str:
        """Create a cluster whose processes read files of this machine.

        Args:
            request: Its size and settings.
            files: Files of this machine for the pods.
            is_stopping: Returns True to end the wait for the coordinator.

        Raises:
            ClusterExists: One of this name exists.
            ClusterFailed: It did not come up; it was removed.
        """
        if request.workers:
            raise NotOnKubernetes(
                "workers are yours to deploy: pods that run `gradmesh worker` with the label "
                "gradmesh.io/client=true"
            )
        if Pods(self._api, self.name).exist:
            raise self._exists()
        image = self._options.image or IMAGE
        objects = Manifests(self.name, request, image, files).objects()
        created = []
        try:
            for made in (*self._secrets(), *objects):
                self._api.create(made)
                created.append(made)
                self.created = True
            self._wait_for_coordinator(is_stopping)
        except KubernetesRejected as error:
            if error.status == _CONFLICT:
                # It belongs to another cluster, or to one that is ending: do not remove it.
                for made in reversed(created):
                    self._api.delete(made["kind"], made["metadata"]["name"])
                self.created = False
                raise self._exists() from error
            self.remove(60.0)
            if error.status == _NOT_FOUND:
                raise NamespaceMissing(self._api.namespace) from error
            raise
        except BaseException:
            self.remove(60.0)
            raise
        return self._address()

    def run(
        self, request: ClusterRequest, on_line: Callable[[str, str], None], drain_s: float
    ) -> int:
        """Create the cluster, show its logs, and remove it at the end."""
        files = _files(request)
        self.create(request, files)
        return follow_remote(
            self,
            on_line,
            drain_s,
            until_done=request.until_done,
            tail=lambda _: self.tail_of_failed(),
            # Pods get a second to end even when they are killed.
            remove=lambda timeout_s: self.remove(max(1.0, timeout_s)),
        )

    def status(self) -> ClusterView:
        """Read the state of the pods."""
        pods = self.pods()
        why = pods.failure()
        return ClusterView(
            address=self._address(),
            processes=pods.views(),
            failure="" if why is None else f"the trainers were given up: {why}",
        )

    def logs(
        self, names: Sequence[str] = (), *, follow: bool = False, tail: int | None = None
    ) -> Iterator[tuple[str, str]]:
        """Read the logs of the pods, of former ones while Kubernetes keeps them."""
        self.pods()
        logs = PodLogs(self._api, self.name, names)
        return logs.follow(tail) if follow else logs.written(tail)

    def scale(self, role: Role, count: int) -> None:
        """Change the number of trainers or parameter servers.

        `gradmesh scale parameter-servers` migrates the rows.
        """
        pods = self.pods()
        if role == "parameter-server":
            servers = pods.sets[role]["metadata"]["name"]
            self._api.patch("StatefulSet", servers, {"spec": {"replicas": count}})
            return
        if role != "trainer":
            raise CannotScale(role, "a cluster on Kubernetes has one coordinator, and no workers")
        if not pods.jobs:
            raise CannotScale(role, "this cluster has no Job of trainers")
        if count < 1:
            raise CannotScale(role, "a Job has one trainer at least; `gradmesh down` ends all")
        name = "GRADMESH_COORDINATOR_TRAINERS"
        change = {"name": "coordinator", "env": [{"name": name, "value": str(count)}]}
        coordinator = pods.sets["coordinator"]["metadata"]["name"]
        # The coordinator first: with the old number it would refuse the new trainers.
        self._api.patch(
            "StatefulSet",
            coordinator,
            {"spec": {"template": {"spec": {"containers": [change]}}}},
        )
        for job in pods.jobs:
            size = {"spec": {"completions": count, "parallelism": count}}
            self._api.patch("Job", job["metadata"]["name"], size)

    def down(self, timeout_s: float) -> bool:
        """Delete trainers, servers, the coordinator, all other objects, and volumes, in order."""
        self.pods()
        return self.remove(timeout_s)

    def pods(self) -> Pods:
        """Return the cluster's pods.

        Raises:
            NoCluster: There is none of this name.
        """
        pods = Pods(self._api, self.name)
        if not pods.exist:
            place = f"namespace {self._api.namespace} under the name {self.name}"
            raise NoCluster(place, self._flags())
        return pods

    def tail_of_failed(self) -> tuple[str, ...]:
        """Return the last lines of the trainer that failed last, or of one that cannot start."""
        pods = Pods(self._api, self.name)
        failed = [p for p in pods.all if p.get("status", {}).get("phase") == "Failed"]
        stuck = pods.stuck()
        chosen = failed[-1:] or (pods.of(stuck[0])[-1:] if stuck else [])
        return tuple(
            line for pod in chosen for line in self._api.log(pod["metadata"]["name"], tail=_TAIL)
        )

    def _wait_for_coordinator(self, is_stopping: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._ready_s
        while not is_stopping():
            pods = Pods(self._api, self.name)
            if pods.is_ready("coordinator"):
                return
            stuck = pods.stuck()
            if stuck is not None or time.monotonic() > deadline:
                name, why = stuck or ("coordinator", f"not ready in {self._ready_s:g} s")
                reason = f"{name} does not start: {why}; nothing of the cluster is left"
                raise ClusterFailed(reason, 4, self.tail_of_failed())
            time.sleep(_POLL_S)

    def _address(self) -> str:
        def pod() -> str | None:
            found = Pods(self._api, self.name).of("coordinator")
            return str(found[-1]["metadata"]["name"]) if found else None

        address = forwarded(self._api, self.name, pod, _PORT)
        self._publish_token(address)
        return address

    def _secrets(self) -> list[Object]:
        """Return the tokens of a new cluster; those of a former one of its name are kept."""
        if self._api.read("Secret", token_name(self.name)) is not None:
            return []
        reader = reader_secret(self.name)
        return [reader, token_secret(self.name, reader)]

    def _publish_token(self, address: str) -> None:
        """Let this process's clients find the best token that the user may read."""
        if self._published == address:
            return
        for name in (token_name(self.name), reader_token_name(self.name)):
            secret = self._api.read("Secret", name)
            if secret is not None:
                break
        else:
            _log.info("you may read no token of the cluster", extra={"cluster": self.name})
            return
        try:
            publish_until_exit(address, token_in(secret))
        except OSError as error:
            _log.warning("the token was not published", extra={"error": str(error)})
            return
        self._published = address

    def remove(self, timeout_s: float) -> bool:
        """Remove all objects of the cluster; return whether no pod had to be killed."""
        deadline = time.monotonic() + timeout_s
        labels, in_order = selector(self.name), True
        for job in self._api.find("Job", labels):
            self._api.delete("Job", job["metadata"]["name"])
        in_order &= self._wait_for_pods("trainer", deadline)
        for role in ("parameter-server", "coordinator"):
            for one in self._api.find(
                "StatefulSet", f"{labels},app.kubernetes.io/component={role}"
            ):
                self._api.delete("StatefulSet", one["metadata"]["name"])
            in_order &= self._wait_for_pods(role, deadline)
        for kind in _KINDS:
            for one in self._api.find(kind, labels):
                # What the user deploys into a cluster has other components.
                self._api.delete(kind, one["metadata"]["name"])
        for name in (token_name(self.name), reader_token_name(self.name)):
            self._api.delete("Secret", name)
        close_forward(self._api, self.name)
        return in_order

    def _wait_for_pods(self, role: str, deadline: float) -> bool:
        """Wait until the pods of a role have ended; kill them at the deadline."""
        labels = f"{selector(self.name)},app.kubernetes.io/component={role}"
        killed = False
        while pods := self._api.find("Pod", labels):
            if time.monotonic() > deadline and not killed:
                killed = True
                for pod in pods:
                    self._api.delete("Pod", pod["metadata"]["name"], now=True)
            if time.monotonic() > deadline + 30.0:
                _log.warning("pods do not end", extra={"role": role, "pods": len(pods)})
                break
            time.sleep(_POLL_S / 5)
        return not killed

    def _exists(self) -> ClusterExists:
        return ClusterExists(
            f"namespace {self._api.namespace} under the name {self.name}", self._flags()
        )

    def _flags(self) -> str:
        return f"--on kubernetes --namespace {self._api.namespace} --name {self.name}"
