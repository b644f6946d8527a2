"""An emulated cluster in which two users have the documented rights."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.emulator.cluster import EmulatedCluster
from tests.deploy.manifests import OVERLAYS, named, render


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[EmulatedCluster]:
    cluster = EmulatedCluster(tmp_path / "node", namespace="team")
    viewer, operator = (
        named(render(OVERLAYS[0]), "Role", f"gradmesh-{name}") for name in ("viewer", "operator")
    )
    # Clusters of other names than `gradmesh`, as docs/deploy.md says.
    (secrets,) = (rule for rule in viewer["rules"] if "secrets" in rule["resources"])
    secrets["resourceNames"] += ["one-reader-token", "job-reader-token"]
    cluster.api.roles["operator"] = [viewer, operator]
    cluster.api.roles["viewer"] = [viewer]
    for user in ("operator", "viewer", "admin"):
        cluster.api.kubeconfig(tmp_path, user)
    with contextlib.closing(cluster):
        yield cluster
