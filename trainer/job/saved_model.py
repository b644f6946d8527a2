"""A trained model on disk: settings, dense parameters, tables.

model/job.json           the settings, and how many rows each feature has
model/dense.safetensors  parameters and buffers by torch's names
model/tables/            a checkpoint of the tables
model/vocabulary.safetensors   if the ids come from one
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, final

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gradmesh.engine.nn import Module
from gradmesh.protos.errors import CheckpointCorrupt
from gradmesh.protos.version import VERSION
from gradmesh.sdk.checkpoint.manifest import chain_of
from gradmesh.sdk.checkpoint.model import MODEL
from gradmesh.sdk.checkpoint.save import DENSE
from gradmesh.sdk.checkpoint.tensors import map_tensors
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.trainer.data import Fields
from gradmesh.trainer.errors import DataError
from gradmesh.trainer.job.spec import JobSpec

FOLDER = "model"
_SETTINGS, _DENSE, _TABLES = "job.json", "dense.safetensors", "tables"
_VOCABULARY = "vocabulary.safetensors"


@final
class SavedModel(NamedTuple):
    """A model on disk; its tables are not loaded until they are restored."""

    spec: JobSpec
    fields: Fields
    dense: dict[str, Any]
    tables: Path


def save_model(folder: Path, mesh: Mesh, spec: JobSpec, fields: Fields, model: Module) -> None:
    """Write a model into a job's folder; an earlier one is replaced atomically.

    Args:
        folder: The job's output.
        mesh: Where the tables are; outside a step.
        spec: The job.
        fields: The features of a sample.
        model: Its dense part is saved.
    """
    tables = [f"feature-{feature}" for feature in range(fields.features)]
    dense = {name: tensor.data.copy() for name, tensor in model.state_dict().items()}
    content = {"gradmesh": VERSION, **described(spec, fields)}
    _write(folder / FOLDER, mesh, tables, dense, content, spec.data.vocabulary)


def described(spec: JobSpec, fields: Fields) -> dict[str, Any]:
    """Return the description of a model for its folder and its job's checkpoints."""
    return {
        "settings": spec.as_dict(),
        "fields": {
            "dense_features": fields.dense_features,
            "rows": fields.rows,
            "hots": fields.hots,
        },
    }


def save_checkpoint(checkpoint: Path, home: Path, mesh: Mesh) -> None:
    """Write the model of a run's checkpoint into a folder, as a job does at its end.

    Args:
        checkpoint: A checkpoint of a run; verified first.
        home: The model's folder; written atomically.
        mesh: Its tables are restored from the checkpoint.

    Raises:
        CheckpointCorrupt: It is damaged, or holds no run.
    """
    manifest = chain_of(checkpoint)[-1][1]
    if manifest.run is None:
        raise CheckpointCorrupt(
            f"checkpoint {checkpoint} holds tables only, no model", path=checkpoint
        )
    mesh.restore(checkpoint)
    arrays = map_tensors(checkpoint / DENSE)
    dense = {n.removeprefix(MODEL): a.copy() for n, a in arrays.items() if n.startswith(MODEL)}
    vocabulary = manifest.run.settings["settings"]["data"].get("vocabulary")
    tables = [files.table.name for files in manifest.tables]
    content = {"gradmesh": VERSION, **manifest.run.settings}
    _write(home, mesh, tables, dense, content, None if vocabulary is None else Path(vocabulary))


def _write(
    home: Path,
    mesh: Mesh,
    tables: Sequence[str],
    dense: Mapping[str, Any],
    content: dict[str, Any],
    vocabulary: Path | None,
) -> None:
    draft = home.with_name(f"{home.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    mesh.checkpoint(draft / _TABLES, tables=tables)
    save_file(dict(dense), draft / _DENSE)
    if vocabulary is not None:
        shutil.copyfile(vocabulary, draft / _VOCABULARY)
    (draft / _SETTINGS).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(home, ignore_errors=True)
    draft.rename(home)


def load_model(path: Path) -> SavedModel:
    """Read a model.

    Args:
        path: The model's folder, or the output of the job that holds it.

    Raises:
        DataError: There is none, or it is damaged.
    """
    home = path / FOLDER if (path / FOLDER).is_dir() else path
    try:
        content = json.loads((home / _SETTINGS).read_text(encoding="utf-8"))
        dense = load_file(home / _DENSE)
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"{path} holds no trained model: {error}; give the output folder of `gradmesh train`"
        ) from error
    spec = JobSpec.from_dict(content["settings"])
    if (home / _VOCABULARY).exists():
        data = replace(spec.data, vocabulary=home / _VOCABULARY)
        spec = replace(spec, data=data)
    given = content["fields"]
    hots = given["hots"] and tuple(given["hots"])
    fields = Fields(given["dense_features"], tuple(given["rows"]), hots)
    return SavedModel(spec, fields, dense, home / _TABLES)
