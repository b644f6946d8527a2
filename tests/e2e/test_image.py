"""The images as an engine has them."""

import json
import os

import pytest

from gradmesh.protos.version import VERSION
from tests.e2e.compose import ROOT, docker

IMAGE = os.environ.get("GRADMESH_IMAGE", f"gradmesh:{VERSION}")
_ABSENT = ("gcc", "cc", "make", "pip", "git")


@pytest.fixture(scope="module")
def config() -> dict[str, object]:
    found: dict[str, object] = json.loads(docker("image", "inspect", IMAGE))[0]["Config"]
    return found


def sh(script: str) -> str:
    return docker("run", "--rm", "--network", "none", "--entrypoint", "sh", IMAGE, "-c", script)


def test_the_image_does_not_run_as_root(config: dict[str, object]) -> None:
    assert config["User"] == "10001:10001"
    assert sh("id -u; touch /opt/gradmesh/x 2>/dev/null || echo refused") == "10001\nrefused"


def test_it_has_no_tools_that_build() -> None:
    probe = f"for tool in {' '.join(_ABSENT)}; do command -v /opt/gradmesh/bin/$tool; done"

    # Files of the base image do not count.
    assert sh(f"{probe}; python -c 'import pip' 2>&1 | tail -n 1").startswith("ModuleNotFound")
    assert sh("command -v gcc cc make git || echo none") == "none"


def test_the_image_has_labels(config: dict[str, object]) -> None:
    labels = config["Labels"]

    assert isinstance(labels, dict)
    assert labels["org.opencontainers.image.version"] == VERSION
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert config["Healthcheck"]
    assert docker("run", "--rm", IMAGE, "--version").endswith(VERSION)


def test_its_kernels_are_compiled() -> None:
    count = "find /var/cache/gradmesh -name '*.nbc' | wc -l"
    warm = 'python -c "from gradmesh.engine.kernels.warm import warm_up; warm_up()"'
    before, after = sh(f"{count}; {warm}; {count}").split()

    assert int(before) > 40
    assert before == after


def test_the_cuda_image_is_built_as_far_as_possible_without_cuda() -> None:
    network = os.environ.get("BUILD_NETWORK", "default")
    file = str(ROOT / "deploy/docker/cuda.Dockerfile")
    build = ("build", "-q", "--network", network, "-f", file, "--target", "wheel", str(ROOT))

    made = docker(*build, timeout_s=280).splitlines()[-1]

    assert f"gradmesh-{VERSION}-py3-none-any.whl" in docker("run", "--rm", made, "ls", "/wheels")
