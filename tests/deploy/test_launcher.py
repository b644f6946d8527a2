"""The launcher of Kubernetes against the emulated cluster, as users with the documented rights."""

import json
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradmesh.launch.errors import CannotScale, ClusterExists, ClusterFailed, NoCluster
from gradmesh.launch.kubernetes import api as api_module
from gradmesh.launch.kubernetes.api import Api, KubernetesOptions
from gradmesh.launch.kubernetes.errors import (
    KubernetesForbidden,
    KubernetesMissing,
    KubernetesRejected,
    KubernetesUnreachable,
    NamespaceMissing,
    NotOnKubernetes,
)
from gradmesh.launch.kubernetes.launcher import KubernetesLauncher
from gradmesh.launch.kubernetes.manifests import IMAGE, Manifests
from gradmesh.launch.launcher import ClusterRequest, Launcher
from gradmesh.sdk.cluster.status import fetch
from gradmesh.sdk.process.network import SecurityConfig
from tests.conformance.launcher_suite import LauncherSuite
from tests.deploy.emulator.cluster import EmulatedCluster
from tests.deploy.emulator.resources import CORE, Resource
from tests.deploy.emulator.server import wait_until
from tests.deploy.emulator.store import Refused
from tests.deploy.manifests import DEPLOY, OVERLAYS, Object, named, needs_kubectl, of_kind, render
from tests.deploy.user import launcher, left_over, run

pytestmark = needs_kubectl

SMALL = ClusterRequest(parameter_servers=1, trainers=0)
TRAINING = ClusterRequest(
    parameter_servers=1,
    trainers=1,
    settings={
        "job.steps": 1_000_000,
        "job.batch_size": 16,
        "job.log_every": 1,
        "data.rows": (50, 20),
        "trainer.join_timeout_s": 60,
    },
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("emulated")
class TestKubernetes(LauncherSuite):
    def make(self, folder: Path) -> Launcher:
        return launcher(folder)


def status_of(folder: Path) -> dict[str, Any]:
    shown = run(folder, "status", "--json", "--namespace", "team", "--name", "one", user="viewer")
    nothing: dict[str, Any] = {"step": 0, "members": []}
    return json.loads(shown.stdout) if shown.returncode == 0 else nothing


def training_on(folder: Path) -> list[str]:
    return [m["name"] for m in status_of(folder)["members"] if m["role"] == "trainer" and m["step"]]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_trainers_join_and_leave_and_every_rbac_right_is_needed(
    emulated: EmulatedCluster, tmp_path: Path
) -> None:
    launched = launcher(tmp_path)
    launched.up(TRAINING)
    wait_until(lambda: training_on(tmp_path) == ["trainer-0"], 100)

    launched.scale("trainer", 2)

    wait_until(lambda: training_on(tmp_path) == ["trainer-0", "trainer-1"], 100)
    which = ("--namespace", "team", "--name", "one")
    moved = run(tmp_path, "scale", "parameter-servers", "2", *which)
    assert (moved.returncode, moved.stdout[:22]) == (0, "2 parameter servers: 2"), moved.stderr
    with pytest.raises(CannotScale, match="worker processes: a cluster on Kubernetes has"):
        launched.scale("worker", 2)
    assert next(launched.logs(["trainer-1"], follow=True, tail=1))[0] == "trainer-1"
    assert launched.down(50)
    assert left_over(emulated) == []
    granted = {
        (verb, group, resource)
        for role in of_kind(render(OVERLAYS[0]), "Role")
        if role["metadata"]["name"] != "gradmesh-token"  # that of a pod
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    # kubectl forwards ports in another way than we do; pods are killed only if they do not end.
    not_seen = {("create", "", "pods/portforward"), ("delete", "", "pods")}
    assert emulated.api.used == granted - not_seen


def by_key(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(made["kind"], made["metadata"]["name"]): made for made in objects}


def test_objects_are_those_that_kubectl_would_send() -> None:
    request = ClusterRequest(parameter_servers=2, trainers=2)
    ours = by_key(Manifests("gradmesh", request, IMAGE).objects())
    base = by_key(render(DEPLOY / "base"))

    # A launcher creates neither the rights of users nor the namespace,
    # and it makes the tokens itself.
    token = {(kind, "gradmesh-token") for kind in ("Job", "ServiceAccount", "NetworkPolicy")}
    others = {k for k in base if k[0] in ("Namespace", "Role", "RoleBinding")} | token
    (hashed,) = (key for key in base if key[1].startswith("gradmesh-settings-"))
    plain = ("ConfigMap", "gradmesh-settings")
    assert ours.keys() - {plain} == base.keys() - others - {hashed}
    assert ours[plain]["data"] == base[hashed]["data"]
    for key in ours.keys() & base.keys():
        text = json.dumps(base[key]).replace(hashed[1], plain[1])
        assert json.loads(text) == ours[key], key


def test_two_clusters_share_nothing_but_the_namespace() -> None:
    request = ClusterRequest(parameter_servers=3, trainers=4)
    objects = Manifests("clicks", request, IMAGE).objects()

    assert all(made["metadata"]["name"].startswith("clicks-") for made in objects)
    assert "gradmesh-coordinator" not in json.dumps(objects)
    assert named(objects, "StatefulSet", "clicks-parameter-server")["spec"]["replicas"] == 3
    job = named(objects, "Job", "clicks-trainer")["spec"]
    assert (job["completions"], job["parallelism"]) == (4, 4)
    assert job["template"]["spec"]["subdomain"] == "clicks-trainer"


def resource(kind: str) -> Resource:
    return next(one for one in CORE if one.kind == kind)


def coordinator_of(cluster: str) -> Object:
    """Return a coordinator without pods."""
    made = named(render(OVERLAYS[0]), "StatefulSet", "gradmesh-coordinator")
    labels = {**made["metadata"]["labels"], "app.kubernetes.io/instance": cluster}
    made["metadata"] = {"name": f"{cluster}-coordinator", "labels": labels}
    made["spec"]["replicas"] = 0
    return made


def up(one: KubernetesLauncher) -> object:
    return one.up(SMALL)


def down(one: KubernetesLauncher) -> object:
    return one.down(5)


@pytest.mark.parametrize("action", [up, down])
def test_errors_for_missing_rights_name_the_role(
    emulated: EmulatedCluster, tmp_path: Path, action: Callable[[KubernetesLauncher], object]
) -> None:
    if action is down:
        emulated.objects.create(resource("StatefulSet"), "team", coordinator_of("one"))

    with pytest.raises(KubernetesForbidden, match=r"not allowed to .* gradmesh-operator"):
        action(launcher(tmp_path, "viewer"))


def test_cluster_that_exists_is_left_alone(emulated: EmulatedCluster, tmp_path: Path) -> None:
    emulated.objects.create(resource("StatefulSet"), "team", coordinator_of("one"))

    with pytest.raises(ClusterExists, match="down --on kubernetes --namespace team --name one"):
        launcher(tmp_path).up(SMALL)

    assert left_over(emulated) == [("StatefulSet", "one-coordinator")]


def test_objects_of_others_are_left_alone(emulated: EmulatedCluster, tmp_path: Path) -> None:
    other = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "one-trainer"}}
    emulated.objects.create(resource("ServiceAccount"), "team", other)

    with pytest.raises(ClusterExists):
        launcher(tmp_path).up(SMALL)

    assert left_over(emulated) == [("ServiceAccount", "one-trainer")]


def test_an_image_that_cannot_be_pulled_ends_up_and_leaves_nothing(
    emulated: EmulatedCluster, tmp_path: Path
) -> None:
    options = KubernetesOptions(
        namespace="team", kubeconfig=tmp_path / "kubeconfig-operator", image="nowhere/gradmesh:1"
    )

    with pytest.raises(ClusterFailed, match=r"does not start: ErrImagePull.*nowhere"):
        KubernetesLauncher("one", options).up(SMALL)

    assert left_over(emulated) == []


@pytest.mark.usefixtures("emulated")
def test_a_missing_cluster_is_reported(tmp_path: Path) -> None:
    shown = run(tmp_path, "status", "--namespace", "team", user="viewer")
    nowhere = KubernetesOptions(namespace="none", kubeconfig=tmp_path / "kubeconfig-operator")

    assert shown.returncode == 3
    assert "no cluster runs in namespace team under the name gradmesh" in shown.stderr
    with pytest.raises(NoCluster):
        launcher(tmp_path).logs()
    with pytest.raises(NamespaceMissing, match="kubectl create namespace none"):
        KubernetesLauncher("one", nowhere).up(SMALL)


def test_unsupported_requests_are_refused_before_anything_is_created(
    emulated: EmulatedCluster, tmp_path: Path
) -> None:
    with pytest.raises(NotOnKubernetes, match="gradmesh worker"):
        launcher(tmp_path).up(ClusterRequest(parameter_servers=1, trainers=0, workers=1))
    with pytest.raises(NotOnKubernetes, match="--detach"):
        launcher(tmp_path).up(ClusterRequest(parameter_servers=1, trainers=1, until_done=True))
    assert left_over(emulated) == []


def test_server_that_does_not_answer_is_named(
    emulated: EmulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    awake = threading.Event()
    monkeypatch.setattr(api_module, "_CALL_S", (0.5, 0.5))
    emulated.api.before = lambda method, path: awake.wait(120) and None

    with pytest.raises(KubernetesUnreachable, match=r"does not answer.*kubectl cluster-info"):
        launcher(tmp_path).status()
    awake.set()
    emulated.close()
    with pytest.raises(KubernetesUnreachable, match="does not answer"):
        launcher(tmp_path).status()


def test_failure_half_way_leaves_nothing(emulated: EmulatedCluster, tmp_path: Path) -> None:
    def refuse(method: str, path: str) -> None:
        if method == "POST" and path.endswith("statefulsets"):
            raise Refused(500, "InternalError", "etcd is away")

    emulated.api.before = refuse

    with pytest.raises(KubernetesRejected, match=r"create StatefulSet .*500.*etcd is away"):
        launcher(tmp_path).up(SMALL)
    assert left_over(emulated) == []


def test_without_a_cluster_or_the_client_the_error_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").write_text("")

    with pytest.raises(KubernetesUnreachable, match="no cluster is configured"):
        Api(KubernetesOptions(kubeconfig=tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(KubernetesMissing, match=r"pip install 'gradmesh\[kubernetes\]'"):
        Api(KubernetesOptions())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lost_connection_fails_no_client_thread(
    emulated: EmulatedCluster, tmp_path: Path
) -> None:
    """A connection that is closed early must not raise in threads of the client."""
    launched = launcher(tmp_path)
    address = launched.up(ClusterRequest(parameter_servers=1, trainers=0))
    try:
        host, port = address.split(":")
        for _ in range(5):
            with socket.create_connection((host, int(port)), 10) as asking:
                # The preface of HTTP/2, which gRPC answers; the answer is not read.
                asking.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        assert fetch(address, SecurityConfig(), 20.0).version
    finally:
        launched.down(60)
    # An exception of a thread would fail the test.
    assert left_over(emulated) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_up_stays_until_the_work_is_done_and_removes_everything(
    emulated: EmulatedCluster, tmp_path: Path
) -> None:
    small = ("--steps", "20", "--batch-size", "16", "--data-rows", "50,20", "--log-every", "5")
    where = ("--namespace", "team", "--name", "one")

    done = run(tmp_path, "up", "--exit-when-done", *small, *where)

    assert done.returncode == 0, done.stderr
    assert '"message": "trained", "step": 20' in done.stderr
    assert left_over(emulated) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_detached_cluster_does_not_name_an_address_that_ends_with_the_command(
    emulated: EmulatedCluster, tmp_path: Path
) -> None:
    where = ("--namespace", "team", "--name", "one")

    begun = run(tmp_path, "up", "--detach", "--trainers", "0", *where)
    ended = run(tmp_path, "down", *where)

    assert begun.stdout == "the cluster is up; `gradmesh down` ends it\n", begun.stderr
    assert (ended.returncode, ended.stdout) == (0, "the cluster has ended\n"), ended.stderr
    assert left_over(emulated) == []
