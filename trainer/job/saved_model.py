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
from typing import Annotated, Any, NamedTuple, TypeAlias, final

import msgspec
import numpy as np
from safetensors.numpy import save_file

from gradmesh.engine.nn import Module
from gradmesh.protos.errors import CheckpointCorrupt
from gradmesh.protos.limits import MAX_TABLE_ROWS
from gradmesh.protos.version import VERSION
from gradmesh.sdk.checkpoint.manifest import Manifest, chain_of, read_manifest
from gradmesh.sdk.checkpoint.model import MODEL
from gradmesh.sdk.checkpoint.tensors import map_tensors
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.process.bounded_file import read_json
from gradmesh.sdk.process.confined import confined
from gradmesh.sdk.process.setting import ConfigError
from gradmesh.trainer.data import Fields
from gradmesh.trainer.data.encoder import Vocabulary
from gradmesh.trainer.errors import CodeNotTrusted, DataError
from gradmesh.trainer.job.spec import JobSpec
from gradmesh.trainer.models.config import MODEL_NAMES

FOLDER = "model"
_SETTINGS, _DENSE, _TABLES = "job.json", "dense.safetensors", "tables"
_VOCABULARY = "vocabulary.safetensors"


_MAX_FEATURES = 4096
_Whole: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_TABLE_ROWS)]


@final
class _SavedFields(msgspec.Struct, frozen=True):
    """The features of a sample, as job.json has them."""

    dense_features: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
    rows: Annotated[list[_Whole], msgspec.Meta(max_length=_MAX_FEATURES)]
    hots: Annotated[list[_Whole], msgspec.Meta(max_length=_MAX_FEATURES)] | None = None


@final
class _Description(msgspec.Struct, frozen=True):
    """What of job.json is read."""

    settings: dict[str, dict[str, Any]]
    fields: _SavedFields


@final
class SavedModel(NamedTuple):
    """A model on disk; its tables are not loaded until they are restored."""

    spec: JobSpec
    fields: Fields
    dense: dict[str, Any]
    tables: Path

    @property
    def files(self) -> list[Path]:
        """The files of the folder that every model has, and its vocabulary if it has one."""
        home = self.tables.parent
        optional = () if self.spec.data.vocabulary is None else (_VOCABULARY,)
        return [confined(name, home) for name in (_SETTINGS, _DENSE, *optional)]

    def check_code(self, trust_code: bool) -> None:
        """Check that the model may be built: building one of the user imports its code.

        Raises:
            CodeNotTrusted: The folder names code to import, and is not trusted.
        """
        name = self.spec.model.name
        if name not in MODEL_NAMES and not trust_code:
            raise CodeNotTrusted(
                f"{self.tables.parent / _SETTINGS}: model.name is {name!r}, code that would be "
                "imported and run; if you trust this folder and that module, say so with "
                "--trust-code (in Python trust_code=True)"
            )


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
    file = spec.data.vocabulary if spec.data.ids == "vocabulary" else None
    words = None if file is None else Vocabulary.load(file)
    _write(folder / FOLDER, mesh, tables, dense, content, words)


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


def save_checkpoint(
    checkpoint: Path, home: Path, mesh: Mesh, vocabulary: Path | None = None
) -> None:
    """Write the model of a run's checkpoint into a folder, as a job does at its end.

    Args:
        checkpoint: A checkpoint of a run; verified first.
        home: The model's folder; written atomically.
        mesh: Its tables are restored from the checkpoint.
        vocabulary: The vocabulary of its data; by default the one in the checkpoint. A path in the
            checkpoint's settings is never read: it may be any file of this machine.

    Raises:
        CheckpointCorrupt: It is damaged, or holds no run.
        DataError: Its data need a vocabulary, and there is none.
    """
    manifest = chain_of(checkpoint)[-1][1]
    if manifest.run is None:
        raise CheckpointCorrupt(
            f"checkpoint {checkpoint} holds tables only, no model", path=checkpoint
        )
    content = {"gradmesh": VERSION, **manifest.run.settings}
    spec, _ = _described(content, checkpoint)
    words = None
    if spec.data.ids == "vocabulary":
        words = Vocabulary.load(vocabulary or _own_vocabulary(checkpoint, manifest))
    mesh.restore(checkpoint)
    arrays = map_tensors(manifest.run.dense.inside(checkpoint))
    dense = {n.removeprefix(MODEL): a.copy() for n, a in arrays.items() if n.startswith(MODEL)}
    tables = [files.table.name for files in manifest.tables]
    _write(home, mesh, tables, dense, content, words)


def _own_vocabulary(checkpoint: Path, manifest: Manifest) -> Path:
    assert manifest.run is not None
    if manifest.run.vocabulary is None:
        raise DataError(
            f"checkpoint {checkpoint} was trained with a vocabulary and holds none; give its file "
            "with --vocabulary FILE"
        )
    return manifest.run.vocabulary.inside(checkpoint)


def _write(
    home: Path,
    mesh: Mesh,
    tables: Sequence[str],
    dense: Mapping[str, Any],
    content: dict[str, Any],
    vocabulary: Vocabulary | None,
) -> None:
    draft = home.with_name(f"{home.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    mesh.checkpoint(draft / _TABLES, tables=tables)
    save_file(dict(dense), draft / _DENSE)
    if vocabulary is not None:
        # Written from its content: a copy could be one of any file.
        vocabulary.save(draft / _VOCABULARY)
    (draft / _SETTINGS).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(home, ignore_errors=True)
    draft.rename(home)


def load_model(path: Path) -> SavedModel:
    """Read a model; imports nothing that it names.

    Args:
        path: The model's folder, or the output of the job that holds it.

    Raises:
        DataError: There is none, or it is damaged.
    """
    home = path / FOLDER if (path / FOLDER).is_dir() else path
    try:
        content = read_json(confined(_SETTINGS, home))
        arrays = map_tensors(confined(_DENSE, home))
        tables = confined(_TABLES, home)
        vocabulary = confined(_VOCABULARY, home)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} holds no trained model: {error}; give the output folder of `gradmesh train`"
        ) from error
    spec, fields = _described(content, home / _SETTINGS)
    data = replace(spec.data, vocabulary=vocabulary if vocabulary.exists() else None)
    dense = {name: np.array(array) for name, array in arrays.items()}
    saved = SavedModel(replace(spec, data=data), fields, dense, tables)
    _check_tables(saved)
    return saved


def _described(content: Any, where: Path) -> tuple[JobSpec, Fields]:
    """Return the job and the features of a model's description.

    Raises:
        DataError: It is damaged.
    """
    try:
        found = msgspec.convert(content, _Description)
        spec = JobSpec.from_dict(found.settings)
    except (msgspec.ValidationError, ConfigError) as error:
        raise DataError(f"{where}: the description of the model is damaged: {error}") from None
    hots = None if found.fields.hots is None else tuple(found.fields.hots)
    if hots is not None and (len(hots) != len(found.fields.rows) or 0 in hots):
        raise DataError(f"{where}: fields.hots has not one number for each of fields.rows")
    return spec, Fields(found.fields.dense_features, tuple(found.fields.rows), hots)


def _check_tables(saved: SavedModel) -> None:
    """Check that a model has the tables of its features.

    Raises:
        DataError: It has not.
    """
    try:
        found = {files.table.name: files.table for files in read_manifest(saved.tables).tables}
    except CheckpointCorrupt as error:
        raise DataError(f"the model's tables cannot be read: {error.message}") from error
    for feature in range(saved.fields.features):
        table = found.get(f"feature-{feature}")
        if table is None or table.rows != saved.fields.rows[feature]:
            raise DataError(
                f"{saved.tables.parent}: fields.rows has {saved.fields.rows[feature]} rows for "
                f"feature {feature}, its table {'is missing' if table is None else table.rows}"
            )
