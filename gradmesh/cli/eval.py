"""`gradmesh eval`."""

import json
from pathlib import Path

import click

from gradmesh.cli.progress import Figures


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("files", type=click.Path(path_type=Path), nargs=-1)
@click.option(
    "--batches",
    type=click.IntRange(min=0),
    help="How many batches; 0 for all.  [default: the job's]",
)
@click.option("--parameter-servers", type=click.IntRange(1, 64), default=1, help="[default: 1]")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures here.")
def eval(
    model: Path,
    files: tuple[Path, ...],
    batches: int | None,
    parameter_servers: int,
    file: Path | None,
) -> int:
    """Measure a trained model on the job's test data, or on other FILES of the same format.

    MODEL is the output folder of `gradmesh train`. Shows AUC, log loss, normalised entropy and
    calibration.
    """
    # Imported here, so that --help stays quick.
    from gradmesh.launch.scoring import open_scorer

    with open_scorer(model, parameter_servers) as scorer:
        wanted = scorer.saved.spec.job.eval_batches if batches is None else batches
        figures = scorer.evaluate(files, wanted)
    Figures(figures).show()
    if file is not None:
        file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0
