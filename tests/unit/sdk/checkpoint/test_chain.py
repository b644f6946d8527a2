"""Chains of checkpoints: their bases, their length, the names of their folders."""

from pathlib import Path

import pytest

from gradmesh.protos.errors import CheckpointCorrupt, InvalidRequest
from gradmesh.sdk.checkpoint import manifest as manifests
from gradmesh.sdk.checkpoint import save
from gradmesh.sdk.checkpoint.manifest import chain_of, manifests_of, read_manifest
from gradmesh.sdk.checkpoint.save import read_base
from tests.security.hostile_files import table_spec, write_checkpoint


def add(folder: Path, base: Path) -> Path:
    return write_checkpoint(
        folder,
        change=lambda m: m.update(base={"id": read_manifest(base).id, "path": f"../{base.name}"}),
    )


def test_the_full_checkpoint_comes_first(tmp_path: Path) -> None:
    full = write_checkpoint(tmp_path / "a")
    last = add(tmp_path / "c", add(tmp_path / "b", full))

    assert [path.name for path, _ in chain_of(last)] == ["a", "b", "c"]
    assert [path.name for path, _ in manifests_of(last)] == ["c", "b", "a"]


def test_a_chain_that_could_not_be_restored_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = add(tmp_path / "b", write_checkpoint(tmp_path / "a"))
    assert read_base(last, [table_spec()]).id == read_manifest(last).id

    monkeypatch.setattr(save, "MAX_CHAIN", 2)
    with pytest.raises(InvalidRequest, match=r"chain of 2.*make a full checkpoint"):
        read_base(last, [table_spec()])
    monkeypatch.setattr(manifests, "MAX_CHAIN", 1)
    with pytest.raises(CheckpointCorrupt, match="more than 1 checkpoints"):
        chain_of(last)


def test_a_base_in_another_folder_is_refused_when_it_is_written(tmp_path: Path) -> None:
    former = read_manifest(write_checkpoint(tmp_path / "all/a"))

    made = save._base(former, tmp_path / "all/a", tmp_path / "all/b")
    assert made is not None
    assert made.path == "../a"
    for place in ("other/b", "all/a/b"):
        with pytest.raises(InvalidRequest, match="a chain is in one folder"):
            save._base(former, tmp_path / "all/a", tmp_path / place)


@pytest.mark.parametrize("name", ["aux", "manifest.json", "COMPLETE", "dense.safetensors"])
def test_a_tables_folder_is_no_other_file(name: str) -> None:
    assert save._folder_name(name) == f"={name}"
    assert save._folder_name("a/user.1") == "a%2Fuser.1"
