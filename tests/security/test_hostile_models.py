"""Folders of models that somebody else trained: they choose no code, no file, no memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gradmesh.protos.errors import CheckpointCorrupt
from gradmesh.sdk.checkpoint.manifest import DENSE, RunManifest
from gradmesh.sdk.checkpoint.save import RunArrays, write_file
from gradmesh.trainer.data.encoder import Vocabulary
from gradmesh.trainer.errors import CodeNotTrusted, DataError
from gradmesh.trainer.job.saved_model import load_model, save_checkpoint
from gradmesh.trainer.job.spec import JobSpec
from tests.security.hostile_files import seal_again, write_checkpoint, write_model


def run(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradmesh", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
    )


@pytest.mark.parametrize("command", ["eval", "predict"])
def test_a_model_folder_does_not_choose_code_to_import(tmp_path: Path, command: str) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    model = write_model(tmp_path / "model", "evil:build")
    (tmp_path / "data.txt").write_text("")

    done = run(command, model, tmp_path / "data.txt", folder=tmp_path)

    assert done.returncode == 2, done.stderr
    assert "evil:build" in done.stderr
    assert "--trust-code" in done.stderr
    assert not (tmp_path / "imported").exists()


def test_code_is_trusted_only_explicitly(tmp_path: Path) -> None:
    saved = load_model(write_model(tmp_path / "model", "evil:build"))

    with pytest.raises(CodeNotTrusted, match=r"job\.json.*'evil:build'"):
        saved.check_code(False)
    saved.check_code(True)
    load_model(write_model(tmp_path / "built-in")).check_code(False)


def test_export_copies_nothing_but_the_model(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a private key")
    model = write_model(tmp_path / "model", "evil:build")
    (model / "notes.txt").symlink_to(tmp_path / "secret")
    (model / "other.txt").write_text("other")

    done = run("export", model, tmp_path / "plain", folder=tmp_path)

    assert done.returncode == 0, done.stderr
    found = {path.name for path in (tmp_path / "plain").iterdir()}
    assert found == {"dense.safetensors", "job.json", "feature-0.safetensors"}


@pytest.mark.parametrize("name", ["job.json", "dense.safetensors", "vocabulary.safetensors"])
def test_a_file_of_a_model_is_no_link_to_another_place(tmp_path: Path, name: str) -> None:
    model = write_model(tmp_path / "model")
    (tmp_path / "secret").write_text("a private key")
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(tmp_path / "secret")

    with pytest.raises(DataError, match="symbolic link"):
        load_model(model)


DESCRIPTIONS: dict[str, dict[str, Any]] = {
    "no settings": {"settings": None},
    "settings of numbers": {"settings": {"job": 3}},
    "an unknown section": {"settings": {"security": {"token_file": "/etc/passwd"}}},
    "an unknown key": {"settings": {"job": {"colour": 1}}},
    "a number without end": {"settings": {"job": {"learning_rate": 10**400}}},
    "steps without end": {"settings": {"job": {"steps": 10**400}}},
    "a path with NUL": {"settings": {"data": {"train": ["a\0b"]}}},
    "half a character": {"settings": {"job": {"output": "\ud800"}}},
    "the home of no user": {"settings": {"job": {"output": "~nobody-has-this-name/x"}}},
    "no fields": {"fields": None},
    "rows below 0": {"fields": {"dense_features": 1, "rows": [-1]}},
    "more features than tables": {"fields": {"dense_features": 1, "rows": [100] * 2}},
    "features without end": {"fields": {"dense_features": 1, "rows": [1] * 100_000}},
    "other rows": {"fields": {"dense_features": 1, "rows": [99]}},
    "hots of another number": {"fields": {"dense_features": 1, "rows": [100], "hots": [1, 1]}},
    "nested": {"settings": json.loads('{"a":' * 300 + "{}" + "}" * 300)},
}


@pytest.mark.parametrize("changes", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_a_hostile_description_of_a_model_is_a_data_error(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(DataError):
        load_model(write_model(tmp_path / "model", **changes))


def test_a_checkpoint_does_not_choose_a_vocabulary_to_copy(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a private key")
    settings = JobSpec().as_dict()
    settings["data"] |= {"ids": "vocabulary", "vocabulary": str(secret)}
    fields = {"dense_features": 2, "rows": [100], "hots": None}
    folder = write_checkpoint(tmp_path / "a")
    dense = write_file(folder, DENSE, {"model.w": np.ones(2, np.float32)})
    run_part = RunManifest(1, 1, {"settings": settings, "fields": fields}, dense)
    seal_again(folder, lambda m: m.update(run=msgspec.to_builtins(run_part)))

    with pytest.raises(DataError, match="--vocabulary FILE"):
        save_checkpoint(folder, tmp_path / "served", mesh=None)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="is not a vocabulary"):
        save_checkpoint(folder, tmp_path / "served", None, secret)  # type: ignore[arg-type]

    assert not (tmp_path / "served").exists()


def test_a_checkpoint_brings_its_own_vocabulary(tmp_path: Path, cluster: Any) -> None:
    words = tmp_path / "words.safetensors"
    Vocabulary([np.array([7, 3])], 5).save(words)
    settings = JobSpec().as_dict()
    settings["data"] |= {"ids": "vocabulary", "vocabulary": str(words)}
    about = {"settings": settings, "fields": {"dense_features": 2, "rows": [100], "hots": None}}
    folder = write_checkpoint(tmp_path / "a")
    run_part = RunArrays(1, 1, about, {"model.w": np.ones(2, np.float32)}, words).write(folder)
    seal_again(folder, lambda m: m.update(run=msgspec.to_builtins(run_part)))
    words.unlink()

    save_checkpoint(folder, tmp_path / "served", cluster.connect())

    found = Vocabulary.load(tmp_path / "served/vocabulary.safetensors")
    assert (found.rows, found.threshold) == ((4,), 5)
    assert found.ids(np.array([[3], [7], [8]])).tolist() == [[3], [2], [1]]
    with (folder / "vocabulary.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointCorrupt, match="vocabulary"):
        save_checkpoint(folder, tmp_path / "other", cluster.connect())
