"""The real kubectl against the emulated API server: apply, apply again, diff, delete."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.emulator.server import ApiServer
from tests.deploy.manifests import ALL, KUBECTL, OVERLAYS, named, needs_kubectl, render

pytestmark = needs_kubectl


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


def kubectl(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert KUBECTL is not None
    return subprocess.run(
        [KUBECTL, "--kubeconfig", str(config), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        # kubectl caches discovery by server address, and ports are reused.
        env={
            "HOME": str(config.parent),
            "PATH": "/usr/bin:/bin",
            "KUBECACHEDIR": str(config) + ".d",
        },
    )


def held_by(api: ApiServer) -> dict[tuple[str, str], str]:
    """Return the version of each object."""
    return {
        (made["kind"], made["metadata"]["name"]): made["metadata"]["resourceVersion"]
        for resource in api.resources
        for made in api.objects.list(resource.plural)
    }


QUICK = ("cpu", "everything")
_MARKS = [
    pytest.param(f, marks=() if f.name in QUICK else pytest.mark.slow, id=f.name) for f in ALL
]


@pytest.mark.parametrize("folder", _MARKS)
def test_apply_apply_again_diff_and_delete(folder: Path, api: ApiServer, tmp_path: Path) -> None:
    config = api.kubeconfig(tmp_path)
    wanted = {(made["kind"], made["metadata"]["name"]) for made in render(folder)}

    first = kubectl(config, "apply", "-k", str(folder))
    assert first.returncode == 0, first.stderr
    held = held_by(api)
    assert held.keys() == wanted

    again = kubectl(config, "apply", "-k", str(folder))
    assert again.returncode == 0, again.stderr
    # kubectl sends the selector of a budget each time, and then calls it configured.
    assert held_by(api) == held
    changed = [line for line in again.stdout.splitlines() if not line.endswith("unchanged")]
    assert all(line.startswith("poddisruptionbudget") for line in changed)

    same = kubectl(config, "diff", "-k", str(folder))
    assert (same.returncode, same.stdout) == (0, ""), same.stderr

    gone = kubectl(config, "delete", "-k", str(folder), "--wait=false")
    assert gone.returncode == 0, gone.stderr
    assert not any(api.objects.list(resource.plural) for resource in api.resources)


def test_changed_size_is_a_change_of_the_size_only(api: ApiServer, tmp_path: Path) -> None:
    """A user raises the number of servers and applies: the trainers' Job is left alone."""
    config, folder = api.kubeconfig(tmp_path), OVERLAYS[0]
    assert kubectl(config, "apply", "-k", str(folder)).returncode == 0
    more = tmp_path / "more"
    more.mkdir()
    base = Path("..", *([".."] * len(tmp_path.relative_to("/").parts)), *folder.parts[1:])
    (more / "kustomization.yaml").write_text(
        f"resources: ['{base}']\nreplicas: [{{name: gradmesh-parameter-server, count: 3}}]\n"
    )

    shown = kubectl(config, "diff", "-k", str(more))
    done = kubectl(config, "apply", "-k", str(more))

    assert shown.returncode == 1
    assert "+  replicas: 3" in shown.stdout
    changed = {line.split()[0] for line in done.stdout.splitlines() if "unchanged" not in line}
    assert changed - {"poddisruptionbudget.policy/gradmesh-parameter-server"} == {
        "statefulset.apps/gradmesh-parameter-server"
    }


def test_changed_job_is_refused_until_it_is_deleted(api: ApiServer, tmp_path: Path) -> None:
    """An upgrade as in docs/deploy.md: the pods of a Job are immutable."""
    config, folder = api.kubeconfig(tmp_path), OVERLAYS[0]
    assert kubectl(config, "apply", "-k", str(folder)).returncode == 0
    job = named(render(folder), "Job", "gradmesh-trainer")
    job["spec"]["template"]["spec"]["containers"][0]["image"] = "gradmesh:next"
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job))

    refused = kubectl(config, "apply", "-f", str(file))
    kubectl(config, "-n", "gradmesh", "delete", "job", "gradmesh-trainer", "--wait=false")
    taken = kubectl(config, "apply", "-f", str(file))

    assert "immutable" in refused.stderr
    assert taken.returncode == 0, taken.stderr


def test_missing_extensions_are_named(tmp_path: Path) -> None:
    api = ApiServer(extensions=False)
    try:
        folder = next(folder for folder in ALL if folder.name == "secure")
        config = api.kubeconfig(tmp_path)
        refused = kubectl(config, "apply", "--validate=false", "-k", str(folder))
    finally:
        api.close()

    assert refused.returncode != 0
    assert "Certificate" in refused.stderr
    assert "ensure CRDs are installed first" in refused.stderr
