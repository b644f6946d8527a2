"""Tokens by default, and the component `tls` with real certificates as the manifests have them."""

import base64
import os
from pathlib import Path
from typing import Any

import pytest
import trustme

import gradmesh as gm
from gradmesh.engine.optim import SGD
from gradmesh.launch.kubernetes.api import KubernetesOptions
from gradmesh.launch.kubernetes.forward import close_forward
from gradmesh.launch.kubernetes.launcher import KubernetesLauncher
from gradmesh.launch.launcher import ClusterRequest
from gradmesh.protos.errors import Forbidden, MeshError, Unauthenticated
from gradmesh.sdk.cluster.status import ClusterStatus, fetch
from gradmesh.sdk.process.network import SecurityConfig
from tests.deploy.emulator.cluster import EmulatedCluster
from tests.deploy.emulator.resources import CORE
from tests.deploy.emulator.server import wait_until
from tests.deploy.manifests import COMBINATIONS, Object, needs_kubectl, of_kind, render
from tests.deploy.test_kubectl import kubectl
from tests.deploy.user import launcher

pytestmark = [needs_kubectl, pytest.mark.slow]

SECRETS = next(one for one in CORE if one.kind == "Secret")
NAMESPACES = next(one for one in CORE if one.kind == "Namespace")


def issue(authority: trustme.CA, certificate: Object, cluster: EmulatedCluster) -> dict[str, bytes]:
    """Act as cert-manager: write files for the names of a Certificate.

    Pods have other addresses here than names, so these are added.
    """
    spec, role = certificate["spec"], certificate["metadata"]["name"].removeprefix("gradmesh-")
    hosts = [f"gradmesh-{role}-{i}" for i in range(2)]
    addresses = [cluster.node.address(host) for host in hosts]
    names = [*spec["dnsNames"], *spec.get("ipAddresses", ()), *addresses]
    made = authority.issue_cert(*names)
    return {
        "tls.crt": b"".join(blob.bytes() for blob in made.cert_chain_pems),
        "tls.key": made.private_key_pem.bytes(),
        "ca.crt": authority.cert_pem.bytes(),
    }


@pytest.mark.timeout(600)
def test_mutual_tls_with_roles_trains_and_refuses_other_clients(
    emulated: EmulatedCluster, tmp_path: Path
) -> None:
    folder = next(one for one in COMBINATIONS if one.name == "secure")
    admin = tmp_path / "kubeconfig-admin"
    (namespace,) = of_kind(render(folder), "Namespace")
    emulated.objects.create(NAMESPACES, "", namespace)
    authority = trustme.CA()
    files: dict[str, dict[str, bytes]] = {
        "gradmesh-token": {
            "token": b"a-token-of-this-cluster",
            "tokens": b"admin:a-token-of-this-cluster",
        },
        "other-token": {"token": b"a-token-of-another-cluster"},
    }
    for certificate in of_kind(render(folder), "Certificate"):
        if not certificate["spec"].get("isCA"):
            files[certificate["spec"]["secretName"]] = issue(authority, certificate, emulated)
    for name, data in files.items():
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name},
            "data": encoded,
        }
        emulated.objects.create(SECRETS, "gradmesh", secret)
        (tmp_path / name).mkdir()
        for key, value in data.items():
            (tmp_path / name / key).write_bytes(value)

    small = tmp_path / "small"
    small.mkdir()
    (small / "kustomization.yaml").write_text(
        f"resources: ['{os.path.relpath(folder, small)}']\n"
        "configMapGenerator:\n  - name: gradmesh-job\n    namespace: gradmesh\n"
        "    behavior: merge\n    literals: [GRADMESH_JOB_STEPS=40, GRADMESH_JOB_BATCH_SIZE=16, "
        "'GRADMESH_DATA_ROWS=50,20', GRADMESH_JOB_LOG_EVERY=5]\n"
        "    options: {disableNameSuffixHash: true}\n"
    )
    applied = kubectl(admin, "apply", "-k", str(small))
    assert applied.returncode == 0, applied.stderr

    def ask(who: str | None, token: bool = True) -> ClusterStatus | None:
        own = tmp_path / f"gradmesh-{who}-tls"
        security = SecurityConfig(
            tls_authority_file=tmp_path / "gradmesh-client-tls/ca.crt",
            tls_certificate_file=own / "tls.crt" if who else None,
            tls_key_file=own / "tls.key" if who else None,
            token_file=tmp_path / ("gradmesh-token" if token else "other-token") / "token",
        )
        there = KubernetesLauncher("gradmesh", KubernetesOptions(kubeconfig=admin))
        try:
            return fetch(there.status().address, security, 3.0)
        except MeshError:
            return None

    def result() -> object:
        status = ask("client")
        return status is not None and status.result

    wait_until(result, 150)
    assert ask("admin") is not None
    assert ask(None) is None, "without a certificate"
    assert ask("client", token=False) is None, "with the token of another cluster"


def test_forwarding_ports_is_not_enough_and_a_viewer_only_reads(
    emulated: EmulatedCluster, tmp_path: Path
) -> None:
    (rule,) = (
        rule
        for rule in emulated.api.roles["viewer"][0]["rules"]
        if "pods/portforward" in rule["resources"]
    )
    listing = {"apiGroups": ["", "apps", "batch"], "verbs": ["list"]}
    resources = ["pods", "statefulsets", "jobs"]
    emulated.api.roles["forwarder"] = [{"rules": [rule, {**listing, "resources": resources}]}]
    emulated.api.kubeconfig(tmp_path, "forwarder")
    operator = launcher(tmp_path)
    spec: dict[str, Any] = {"rows": 10, "dim": 2, "optimizer": SGD(lr=0.1)}
    try:
        with gm.connect(operator.up(ClusterRequest(parameter_servers=1, trainers=0))) as mesh:
            mesh.table("of-the-operator", **spec)
        close_forward(operator._api, operator.name)  # the next user's forward is another one

        for user, refused in (("forwarder", Unauthenticated), ("viewer", Forbidden)):
            there = launcher(tmp_path, user)
            address = there.status().address
            with pytest.raises(refused):
                gm.connect(address)
            if user == "viewer":
                assert fetch(address, SecurityConfig(), 20.0).tables == ("of-the-operator",)
            close_forward(there._api, there.name)
    finally:
        operator.down(50)
