"""Manifests in real containers: `kubectl apply -k`, the real image, read-only, without rights."""

import contextlib
from pathlib import Path

from tests.deploy.emulator.cluster import EmulatedCluster
from tests.deploy.emulator.server import wait_until
from tests.deploy.manifests import needs_kubectl
from tests.deploy.test_kubectl import kubectl
from tests.deploy.test_life import STEPS, done, overlay, shown, step_of
from tests.e2e.docker_node import DockerNode

pytestmark = needs_kubectl


def test_pods_of_the_manifests_train_and_outlive_their_loss(tmp_path: Path) -> None:
    cluster = EmulatedCluster(tmp_path / "node", node=DockerNode)
    with contextlib.closing(cluster):
        admin = cluster.api.kubeconfig(tmp_path, "admin")
        cluster.api.kubeconfig(tmp_path, "viewer")
        applied = kubectl(admin, "apply", "-k", str(overlay(tmp_path)))
        assert applied.returncode == 0, applied.stderr
        wait_until(lambda: step_of(tmp_path) >= 10, 120)

        server, trainer = cluster.pod("parameter-server", 0), cluster.pod("trainer", 1)
        ended = kubectl(
            *(admin, "-n", "gradmesh", "delete", "pod", server["metadata"]["name"]),
            "--wait=false",
        )
        assert ended.returncode == 0, ended.stderr
        cluster.node.kill(trainer)
        wait_until(lambda: cluster.is_replaced(server), 60)

        wait_until(lambda: done(cluster), 200)
        seen = shown(tmp_path)

    assert seen["result"]["steps"] == STEPS
    assert seen["result"]["auc"] > 0.6
    restarts = {process["name"]: process["restarts"] for process in seen["processes"]}
    assert restarts["trainer-1"] == 1
