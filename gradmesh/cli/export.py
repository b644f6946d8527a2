"""`gradmesh export`."""

import shutil
from pathlib import Path

import click


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "kind",
    type=click.Choice(["safetensors", "npz", "parquet"]),
    default="safetensors",
    help="Of the tables.  [default: safetensors]",
)
@click.option("--parameter-servers", type=click.IntRange(1, 64), default=1, help="[default: 1]")
def export(model: Path, folder: Path, kind: str, parameter_servers: int) -> int:
    """Write a trained model into FOLDER as plain files that need no gradmesh to be read.

    dense.safetensors holds the dense layers by torch's names, feature-N.* the ids and rows of each
    table that training has used, job.json the settings. MODEL is the output of `gradmesh train`.
    """
    # Imported here, so that --help stays quick.
    from gradmesh.launch.local import LocalCluster
    from gradmesh.sdk.mesh.connect import connect
    from gradmesh.trainer.job.saved_model import load_model

    if folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"{folder} is not empty; choose another folder")
    saved = load_model(model)
    draft = folder.with_name(folder.name + ".part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    with (
        LocalCluster(parameter_servers=parameter_servers) as cluster,
        connect(cluster.address) as mesh,
    ):
        mesh.restore(saved.tables)
        for feature in range(saved.fields.features):
            name = f"feature-{feature}"
            mesh.export_table(mesh.open_table(name), draft / f"{name}.{kind}")
    for file in sorted(saved.tables.parent.iterdir()):
        if file.is_file():
            shutil.copyfile(file, draft / file.name)
    if folder.exists():
        folder.rmdir()
    draft.rename(folder)
    click.echo(f"{saved.fields.features} tables and the dense layers are in {folder}")
    return 0
