"""Every variable, command and figure that the manifests name exists in gradmesh."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from gradmesh.launch.sections import cluster_sections, role_sections
from gradmesh.sdk.process.config import load
from gradmesh.sdk.process.metrics import new_registry
from gradmesh.sdk.table.metrics import TableMetrics
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.services.parameter_server.metrics import TableCollector
from gradmesh.services.parameter_server.store import TableStore
from tests.deploy.manifests import (
    ALL,
    DEPLOY,
    OVERLAYS,
    component,
    container_of,
    environment,
    needs_kubectl,
    render,
    workloads,
)

pytestmark = needs_kubectl

_FILLED_IN = {
    "POD_NAME": "gradmesh-parameter-server-0",
    "POD_NAMESPACE": "gradmesh",
    "POD_INDEX": "0",
    "JOB_NAME": "gradmesh-trainer",
    "GRADMESH_JOB_ID": "0a1b2c3d-0000-4000-8000-000000000000",
    "OMP_NUM_THREADS": "1",
}


def filled_in(values: dict[str, str], folder: Path) -> dict[str, str]:
    """Return the variables of a container, with local files in place of those in volumes."""
    made: dict[str, str] = {}
    for name, value in values.items():
        value = re.sub(r"\$\((\w+)\)", lambda found: _FILLED_IN[found[1]], value)
        if value.startswith("/etc/gradmesh/"):
            (folder / "file").write_text("token")
            value = str(folder / "file")
        made[name] = value
    return made


@pytest.mark.parametrize("folder", ALL, ids=lambda folder: folder.name)
def test_every_setting_exists_and_has_a_value_that_is_good(folder: Path, tmp_path: Path) -> None:
    objects = render(folder)
    known = {section.section for section in cluster_sections()}
    for workload in workloads(objects):
        sections = role_sections(component(workload))
        variables = filled_in(environment(workload, objects), tmp_path)

        loaded = load(sections, environment=variables, known=known)

        mine = [n for n in variables if n.startswith("GRADMESH_")]
        read = {source.removeprefix("environment ") for source in loaded.sources.values()}
        ours = tuple(f"GRADMESH_{s.section.upper()}_" for s in sections)
        assert {name for name in mine if name.startswith(ours)} <= read


@pytest.mark.parametrize("role", ["coordinator", "parameter-server", "trainer"])
def test_every_command_is_one_of_ours(role: str) -> None:
    for folder in ALL:
        for workload in workloads(render(folder)):
            if component(workload) == role:
                container = container_of(workload)
                # The image's entry point is `gradmesh`.
                assert "command" not in container
                assert container["args"] == [role]

    answer = subprocess.run(
        [sys.executable, "-m", "gradmesh", role, "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert answer.returncode == 0


def test_other_variables_belong_to_a_known_component() -> None:
    """Other variables are those of numba, NCCL, cupy, OpenMP or AWS, or are used by ours."""
    libraries = re.compile(r"(NUMBA_CACHE_DIR|NCCL_[A-Z_]+|CUPY_CACHE_DIR|OMP_NUM_THREADS|AWS_\w+)")
    for folder in ALL:
        objects = render(folder)
        for workload in workloads(objects):
            values = environment(workload, objects)
            for name in values:
                if not name.startswith("GRADMESH_") and not libraries.fullmatch(name):
                    used = any(f"$({name})" in v for n, v in values.items() if n != name)
                    assert used, f"{name} is not used"


def _figures() -> set[str]:
    """Return the names of everything that our processes show to Prometheus."""
    registry = CollectorRegistry()
    RpcMetrics("client", registry)
    RpcMetrics("server", registry)
    shown = {
        *_names(registry),
        *_names(new_registry()),
        "up",  # Prometheus' own
    }
    other = CollectorRegistry()
    TableMetrics(other)
    shown |= _names(other)
    other = CollectorRegistry()
    TableCollector(TableStore("a", None, None, max_bytes=1 << 20, max_waiters=1), other)  # type: ignore[arg-type]
    return shown | _names(other)


def _names(registry: CollectorRegistry) -> set[str]:
    found: set[str] = set()
    for metric in registry.collect():
        assert isinstance(metric, Metric)
        endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        found |= {metric.name + ending for ending in endings.get(metric.type, ("",))}
    return found


def test_every_figure_of_the_dashboard_exists() -> None:
    text = (DEPLOY / "components/monitoring/dashboard.json").read_text()
    dashboard = json.loads(text)
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard["templating"]["list"]]
    named = {
        name
        for query in queries
        for name in re.findall(r"\b(?:gradmesh|process)_[a-z0-9_]+|\bup\b", query)
    }

    assert len(named) >= 10
    assert named <= _figures()


def test_local_overlay_asks_for_little() -> None:
    objects = render(next(folder for folder in OVERLAYS if folder.name == "local"))
    cores = 0.0
    for workload in workloads(objects):
        spec = workload["spec"]
        many = spec.get("replicas") or spec["completions"]
        asked = container_of(workload)["resources"]["requests"]["cpu"]
        cores += many * (float(asked[:-1]) / 1000 if asked.endswith("m") else float(asked))

    assert cores <= 2
