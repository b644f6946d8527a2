"""`gradmesh eval|predict|export`: commands on the output of `gradmesh train`."""

import json
import shutil
import sys
from pathlib import Path
from typing import IO

import click

from gradmesh.cli.output import echo

_trust_code = click.option(
    "--trust-code",
    is_flag=True,
    help="Import the module that MODEL names as its model; read that code first.",
)


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("files", type=click.Path(path_type=Path), nargs=-1)
@click.option(
    "--batches",
    type=click.IntRange(min=0),
    help="Number of batches; 0 for all.  [default: the job's]",
)
@click.option("--parameter-servers", type=click.IntRange(1, 64), default=1, help="[default: 1]")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the results here.")
@_trust_code
def eval(
    model: Path,
    files: tuple[Path, ...],
    batches: int | None,
    parameter_servers: int,
    file: Path | None,
    trust_code: bool,
) -> int:
    """Measure a trained model on the job's test data, or on other FILES of the same format.

    MODEL is the output folder of `gradmesh train`. Shows AUC, log loss, normalised entropy and
    calibration.
    """
    # Imported here, so that --help stays quick.
    from gradmesh.cli.display import ResultTable
    from gradmesh.launch.scoring import open_scorer

    with open_scorer(model, parameter_servers, trust_code=trust_code) as scorer:
        wanted = scorer.saved.spec.job.eval_batches if batches is None else batches
        figures = scorer.evaluate(files, wanted)
    ResultTable(figures).show()
    if file is not None:
        file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Text file, or .npy; created when complete.  [default: standard output]",
)
@click.option("--labelled", is_flag=True, help="The files hold labels, which are ignored.")
@click.option("--parameter-servers", type=click.IntRange(1, 64), default=1, help="[default: 1]")
@_trust_code
def predict(
    model: Path,
    files: tuple[Path, ...],
    output: Path | None,
    labelled: bool,
    parameter_servers: int,
    trust_code: bool,
) -> int:
    """Write the probability of a click for each sample of FILES, one per line, in their order.

    MODEL is the output folder of `gradmesh train`; the files have the format it was trained on,
    without the label unless --labelled is given.
    """
    # Imported here, so that --help stays quick.
    import numpy as np

    from gradmesh.launch.scoring import open_scorer

    with open_scorer(model, parameter_servers, trust_code=trust_code) as scorer:
        parts = scorer.predict(files, labelled=labelled)
        if output is None:
            for part in parts:
                _write(sys.stdout, part)
            return 0
        draft = output.with_name(output.name + ".part")
        if output.suffix == ".npy":
            with draft.open("wb") as file:
                np.save(file, np.concatenate([np.empty(0, np.float32), *parts]))
        else:
            with draft.open("w", encoding="utf-8") as text:
                for part in parts:
                    _write(text, part)
        draft.replace(output)
    return 0


def _write(file: IO[str], part: object) -> None:
    import numpy as np

    file.write("".join(f"{value:.8g}\n" for value in np.asarray(part).tolist()))


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "kind",
    type=click.Choice(["safetensors", "npz", "parquet"]),
    default="safetensors",
    help="Format of the tables.  [default: safetensors]",
)
@click.option("--parameter-servers", type=click.IntRange(1, 64), default=1, help="[default: 1]")
def export(model: Path, folder: Path, kind: str, parameter_servers: int) -> int:
    """Write a trained model into FOLDER as plain files that are readable without gradmesh.

    dense.safetensors holds the dense layers by torch's names, feature-N.* the ids and rows of each
    table that training used, job.json the settings. MODEL is the output of `gradmesh train`; no
    code that it names is imported.
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
    for file in saved.files:
        shutil.copyfile(file, draft / file.name)
    if folder.exists():
        folder.rmdir()
    draft.rename(folder)
    echo(f"{saved.fields.features} tables and the dense layers are in {folder}")
    return 0
