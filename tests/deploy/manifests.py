"""Rendered manifests, and helpers that read them."""

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = sorted((DEPLOY / "overlays").iterdir())
COMBINATIONS = sorted((Path(__file__).parent / "combinations").iterdir())
COMPONENTS = sorted((DEPLOY / "components").iterdir())
ALL = [*OVERLAYS, *COMBINATIONS]
SECURE = [
    f
    for f in ALL
    if re.search(r"^  - .*/tls$", (f / "kustomization.yaml").read_text(), re.MULTILINE)
]

KUBECTL = shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(
    KUBECTL is None,
    reason="NOT TESTED: the manifests, because there is no kubectl on this machine",
)

Object = dict[str, Any]


@functools.cache
def _render(folder: Path) -> str:
    assert KUBECTL is not None
    done = subprocess.run(
        [KUBECTL, "kustomize", str(folder)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    # Cached as JSON, which parses a hundred times faster.
    return json.dumps([made for made in yaml.safe_load_all(done.stdout) if made])


def render(folder: Path) -> list[Object]:
    """Return the objects that `kubectl apply -k` would send; the caller may change them."""
    objects: list[Object] = json.loads(_render(folder))
    return objects


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [made for made in objects if made["kind"] in kinds]


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = (o for o in of_kind(objects, kind) if o["metadata"]["name"] == name)
    return found


def job_of(jobset: Object) -> Object:
    """Return a JobSet's only job as a Job."""
    (only,) = jobset["spec"]["replicatedJobs"]
    metadata = {**only["template"]["metadata"], "name": "gradmesh-trainer-0"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": only["template"]["spec"],
    }


def workloads(objects: list[Object]) -> list[Object]:
    """Return the objects that run processes: StatefulSets and Jobs, a JobSet's job included.

    The Job that makes the tokens is not one of them.
    """
    jobs = [job_of(jobset) for jobset in of_kind(objects, "JobSet")]
    found = [*of_kind(objects, "StatefulSet", "Job"), *jobs]
    return [one for one in found if component(one) != "token"]


def component(made: Object) -> str:
    return str(made["metadata"]["labels"]["app.kubernetes.io/component"])


def pod_of(workload: Object) -> Object:
    template: Object = workload["spec"]["template"]
    return template


def container_of(workload: Object) -> Object:
    (container,) = pod_of(workload)["spec"]["containers"]
    made: Object = container
    return made


def all_containers_of(workload: Object) -> list[Object]:
    """Return the containers of a workload's pods, init containers included."""
    spec = pod_of(workload)["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def environment(workload: Object, objects: list[Object]) -> dict[str, str]:
    """Return the variables of a workload's container; references to the cluster stay as $(…)."""
    container = container_of(workload)
    values: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        values |= named(objects, "ConfigMap", source["configMapRef"]["name"])["data"]
    for one in container["env"]:
        values[one["name"]] = one.get("value", f"$({one['name']})")
    return values


def strings(value: Any) -> Iterator[str]:
    """Yield every string within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def in_bytes(quantity: str) -> int:
    """Return a quantity of memory or storage as a number."""
    return int(quantity[:-2]) * _UNITS[quantity[-2:]]
