"""`gradmesh checkpoint save|ls|show|restore|prune|export`."""

import contextlib
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gradmesh.cli.cluster_options import with_mesh
from gradmesh.cli.display import RowBar
from gradmesh.cli.options import json_option
from gradmesh.cli.output import echo, echo_json
from gradmesh.protos.errors import DeadlineExceeded
from gradmesh.sdk.checkpoint.manifest import Manifest, chain_of
from gradmesh.sdk.checkpoint.model import export_model
from gradmesh.sdk.checkpoint.store import LocalStore, StoredCheckpoint, open_checkpoint, open_store
from gradmesh.sdk.mesh.mesh import Mesh

_LONG_S = 3600.0
_POLL_S = 0.2
_folder = click.argument("folder")


@click.group()
def checkpoint() -> None:
    """Save, list, inspect and restore checkpoints of runs."""


@checkpoint.command("save")
@with_mesh(_LONG_S)
def save(mesh: Mesh, timeout_s: float) -> int:
    """Have the trainers write a checkpoint of the whole run, after their next step.

    It appears in the job's checkpoint_path. For tables alone, without trainers, use
    `gradmesh table checkpoint`.
    """
    connection = mesh.connection
    number = connection.coordinator.request_checkpoint(connection.deadline())
    deadline = connection.deadline(timeout_s)
    while not deadline.passed:
        status = connection.coordinator.get_status(connection.deadline())
        found = status.checkpoint if status.HasField("checkpoint") else None
        if found is not None and found.request >= number:
            if found.error:
                raise click.ClickException(f"no checkpoint: {found.error}")
            echo(
                f"{found.path}: step {found.step}, {found.rows:,} rows, {found.bytes:,} bytes, "
                f"{found.took_s:.1f} s"
            )
            return 0
        time.sleep(_POLL_S)
    raise DeadlineExceeded(
        f"no trainer has written a checkpoint in {timeout_s:g} s; do they train?"
    )


@checkpoint.command("ls")
@_folder
@json_option
def list_all(folder: str, as_json: bool) -> int:
    """List the complete checkpoints in FOLDER, which may be an fsspec URL; the oldest first."""
    with contextlib.closing(open_store(folder)) as store:
        found = [_line(stored) for stored in store.checkpoints()]
    if as_json:
        echo_json(found)
        return 0
    for line in found:
        kind = f"adds to {line['base']}" if line["base"] else "full"
        what = "run" if line["run"] else "tables"
        echo(
            f"{line['name']:<24}step {line['step']:<10}{line['created']}  {what:<7}"
            f"{line['rows']:>12,} rows {line['bytes']:>15,} bytes  {kind}"
        )
    return 0


def _line(stored: StoredCheckpoint) -> dict[str, Any]:
    manifest = stored.manifest
    return {
        "name": stored.path.name,
        "id": manifest.id,
        "step": manifest.step,
        "generation": manifest.generation,
        "created": datetime.fromtimestamp(manifest.created, UTC).isoformat(timespec="seconds"),
        "base": manifest.base.path if manifest.base is not None else None,
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "tables": [table.table.name for table in manifest.tables],
        "run": None
        if manifest.run is None
        else {
            "world_size": manifest.run.world_size,
            "batches": manifest.run.batches,
            "settings": manifest.run.settings,
        },
    }


@checkpoint.command("show")
@_folder
@json_option
def show(folder: str, as_json: bool) -> int:
    """Verify every byte of the checkpoint in FOLDER, and show its contents."""
    store, stored = open_checkpoint(folder)
    with contextlib.closing(store):
        chain = chain_of(store.fetch(stored))
    line = _line(stored)
    line["chain"] = [path.name for path, _ in chain]
    if as_json:
        echo_json(line)
        return 0
    for key, value in line.items():
        if key != "run":
            echo(f"{key + ':':<13}{', '.join(value) if isinstance(value, list) else value}")
    for key, value in (line["run"] or {}).items():
        echo(f"{key + ':':<13}{json.dumps(value)}")
    echo("every file is as it was written")
    return 0


@checkpoint.command("restore")
@_folder
@with_mesh(_LONG_S)
def restore(mesh: Mesh, timeout_s: float, folder: str) -> int:
    """Restore the tables of a mesh from the checkpoint in FOLDER; it is verified first.

    To resume a job from it, dense parameters included, start the job with --resume FOLDER.
    """
    store, stored = open_checkpoint(folder)
    with contextlib.closing(store), RowBar("restoring") as bar:
        made: Manifest = mesh.restore(store.fetch(stored), progress=bar, timeout_s=timeout_s)
    connection = mesh.connection
    count = len(connection.servers.shard_map(connection.deadline()).names)
    echo(f"{folder}: {made.rows:,} rows of step {made.step}, on {count} servers")
    return 0


@checkpoint.command("prune")
@_folder
@click.option("--keep", type=click.IntRange(min=1), required=True, help="Newest ones to keep.")
@click.option(
    "--keep-s",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Also keep checkpoints younger than this many seconds.  [default: 0]",
)
@click.option(
    "--partial", is_flag=True, help="Remove partial files of killed processes; stop writers first."
)
def prune_old(folder: str, keep: int, keep_s: float, partial: bool) -> int:
    """Remove all but the newest checkpoints in FOLDER and their base checkpoints."""
    with contextlib.closing(open_store(folder)) as store:
        gone = store.prune(keep, keep_s)
    if partial and "://" not in folder:
        gone += LocalStore(Path(folder)).remove_partial()
    for name in gone:
        echo(f"removed {name}")
    return 0


@checkpoint.command("export")
@_folder
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--vocabulary",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Vocabulary of the job's data.  [default: the checkpoint's]",
)
def export(folder: str, target: Path, vocabulary: Path | None) -> int:
    """Write the whole model of the checkpoint in FOLDER to TARGET.

    If TARGET ends in .safetensors it is one file: parameters have torch's names, tables are
    embeddings.NAME.weight, optimizer state is not written. Else it is a folder for `gradmesh eval`,
    `predict` and `export`, as if the job had ended there.
    """
    store, stored = open_checkpoint(folder)
    with contextlib.closing(store):
        if target.suffix == ".safetensors":
            names = export_model(store.fetch(stored), target)
            echo(f"{target}: {len(names)} arrays")
        else:
            _export_for_serving(store.fetch(stored), target, vocabulary)
            echo(f"{target}: the model of step {stored.manifest.step}")
    return 0


def _export_for_serving(path: Path, target: Path, vocabulary: Path | None) -> None:
    # Imported here, so that --help stays quick.
    from gradmesh.launch.local import LocalCluster
    from gradmesh.sdk.mesh.connect import connect
    from gradmesh.trainer.job.saved_model import save_checkpoint

    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise click.UsageError(f"{target} is not empty; choose another folder")
    with LocalCluster(parameter_servers=1) as cluster, connect(cluster.address) as mesh:
        save_checkpoint(path, target, mesh, vocabulary)
