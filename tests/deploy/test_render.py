"""Every overlay and every listed combination renders to valid objects."""

from pathlib import Path

import pytest
import yaml

from gradmesh.protos.version import VERSION
from tests.deploy.manifests import (
    ALL,
    COMBINATIONS,
    COMPONENTS,
    DEPLOY,
    OVERLAYS,
    all_containers_of,
    named,
    needs_kubectl,
    render,
    workloads,
)
from tests.deploy.schemas import VERSIONS, check

pytestmark = needs_kubectl

by_name = pytest.mark.parametrize("folder", ALL, ids=lambda folder: folder.name)


def test_there_are_overlays_and_combinations() -> None:
    assert [folder.name for folder in OVERLAYS] == ["cpu", "gpu", "local"]
    assert len(COMBINATIONS) >= 5


@pytest.mark.parametrize("version", VERSIONS)
@by_name
def test_every_object_is_valid(folder: Path, version: str) -> None:
    for made in render(folder):
        check(made, version)


def test_an_unknown_field_is_refused() -> None:
    job = named(render(OVERLAYS[0]), "Job", "gradmesh-trainer")
    job["spec"]["backoffLimitPerIndx"] = 1

    with pytest.raises(Exception, match="backoffLimitPerIndx"):
        check(job, "1.32")


def test_every_component_is_in_a_combination_and_says_what_it_is_for() -> None:
    used = {
        Path(path).name
        for folder in ALL
        for path in yaml.safe_load((folder / "kustomization.yaml").read_text())["components"]
    }

    assert {folder.name for folder in COMPONENTS} <= used
    # agreement has no options; its file says what it does.
    missing = [f.name for f in COMPONENTS if not (f / "README.md").exists()]
    assert missing == ["agreement"]


@by_name
def test_all_have_names_labels_and_a_namespace(folder: Path) -> None:
    for made in render(folder):
        labels = made["metadata"]["labels"]
        trio = ("name", "instance", "component")
        assert all(f"app.kubernetes.io/{one}" in labels for one in trio), made["metadata"]
        if made["kind"] not in ("Namespace", "PriorityClass"):
            assert made["metadata"]["namespace"] == "gradmesh"


@by_name
def test_images_are_tagged_with_the_version(folder: Path) -> None:
    images = {one["image"] for w in workloads(render(folder)) for one in all_containers_of(w)}

    assert images <= {f"gradmesh:{VERSION}", f"gradmesh:{VERSION}-cuda"}
    assert f"gradmesh:{VERSION}" in images


def test_no_block_is_duplicated() -> None:
    """The same block in two files would be changed in one of them."""
    texts = [f.read_text() for f in sorted(DEPLOY.rglob("*.yaml")) if "size" not in f.parts]

    for text in texts:
        blocks = [block.strip() for block in text.split("\n---\n")]
        for block in blocks:
            if len(block.splitlines()) > 8:
                assert sum(other.count(block) for other in texts) == 1
