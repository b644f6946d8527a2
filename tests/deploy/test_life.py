"""`kubectl apply -k`, then pods that are lost, deleted, replaced: the result has the same bits."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import gradmesh as gm
from gradmesh.launch.kubernetes.api import KubernetesOptions
from gradmesh.launch.kubernetes.launcher import KubernetesLauncher
from gradmesh.protos.errors import MeshError
from gradmesh.sdk.cluster.status import fetch
from gradmesh.sdk.process.network import SecurityConfig
from tests.deploy.emulator.cluster import EmulatedCluster
from tests.deploy.emulator.server import wait_until
from tests.deploy.manifests import OVERLAYS, needs_kubectl
from tests.deploy.test_kubectl import kubectl
from tests.deploy.user import run

pytestmark = [needs_kubectl, pytest.mark.slow]

STEPS = 700
JOB = {"job": {"steps": STEPS, "batch_size": 16, "log_every": 2, "eval_batches": 4}}
DATA = {"data": {"rows": [200, 50], "dense_features": 4}}


def overlay(folder: Path) -> Path:
    """Write a user's overlay: that for laptops, with a small job."""
    made = folder / "mine"
    made.mkdir()
    (local,) = (one for one in OVERLAYS if one.name == "local")
    values = {
        f"GRADMESH_{section}_{key}".upper(): ",".join(map(str, v)) if isinstance(v, list) else v
        for section, table in {**JOB, **DATA}.items()
        for key, v in table.items()
    }
    lines = "".join(f"      - {name}={value}\n" for name, value in values.items())
    (made / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: gradmesh\n"
        f"resources: ['{os.path.relpath(local, made)}']\n"
        "configMapGenerator:\n  - name: gradmesh-job\n    behavior: merge\n"
        f"    literals:\n{lines}    options: {{disableNameSuffixHash: true}}\n"
    )
    return made


def shown(folder: Path) -> dict[str, Any]:
    """Return the output of `gradmesh status --on kubernetes` for a viewer."""
    answer = run(folder, "status", "--json", user="viewer")
    assert answer.returncode == 0, answer.stderr
    seen: dict[str, Any] = json.loads(answer.stdout)
    return seen


def step_of(folder: Path) -> int:
    """Return the step of the run, -1 if unknown."""
    options = KubernetesOptions(kubeconfig=folder / "kubeconfig-viewer")
    try:
        address = KubernetesLauncher("gradmesh", options).status().address
        return fetch(address, SecurityConfig(), 2.0).step
    except (MeshError, RuntimeError):
        return -1


def done(emulated: EmulatedCluster) -> bool:
    (job,) = emulated.objects.list("jobs", labels="app.kubernetes.io/component=trainer")
    conditions = job.get("status", {}).get("conditions") or ()
    assert not any(one["type"] == "Failed" for one in conditions), conditions
    return bool(conditions)


@pytest.mark.timeout(600)
def test_lost_pods_are_replaced_without_changing_a_bit(
    emulated: EmulatedCluster, tmp_path: Path
) -> None:
    admin = tmp_path / "kubeconfig-admin"

    applied = kubectl(admin, "apply", "-k", str(overlay(tmp_path)))
    assert applied.returncode == 0, applied.stderr

    furthest = 0

    def gone_on(steps: int = 10) -> None:
        """Wait until training continues after the fault."""
        nonlocal furthest
        wait_until(lambda: step_of(tmp_path) >= furthest + steps, 150)
        furthest = step_of(tmp_path)
        assert furthest < STEPS - 100, "too quick to be disturbed; make the job longer"

    gone_on()
    emulated.node.kill(emulated.pod("trainer", 1))
    wait_until(lambda: emulated.pod("trainer", 1)["status"]["phase"] == "Running", 30)
    gone_on()
    emulated.node.kill(emulated.pod("parameter-server", 0))
    gone_on()
    for component, index in (("parameter-server", 1), ("coordinator", 0)):
        pod = emulated.pod(component, index)
        name = pod["metadata"]["name"]
        ended = kubectl(admin, "-n", "gradmesh", "delete", "pod", name, "--wait=false")
        assert ended.returncode == 0, ended.stderr
        wait_until(lambda pod=pod: emulated.is_replaced(pod), 60)
        gone_on()

    wait_until(lambda: done(emulated), 120)
    seen = shown(tmp_path)
    figures = seen["result"]
    undisturbed = gm.train({**JOB, **DATA}, trainers=2, parameter_servers=2).figures
    assert figures["steps"] == STEPS
    assert figures["dense_crc32"] == undisturbed["dense_crc32"]
    assert figures["auc"] == undisturbed["auc"]
    restarts = {process["name"]: process["restarts"] for process in seen["processes"]}
    assert restarts["trainer-1"] == 1
    assert restarts["parameter-server-0"] == 1
    # Volumes stay with the names of their pods.
    claims = {
        claim["metadata"]["name"] for claim in emulated.objects.list("persistentvolumeclaims")
    }
    assert claims == {
        "state-gradmesh-coordinator-0",
        "state-gradmesh-parameter-server-0",
        "state-gradmesh-parameter-server-1",
    }
