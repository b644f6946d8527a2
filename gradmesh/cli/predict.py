"""`gradmesh predict`."""

import sys
from pathlib import Path
from typing import IO

import click


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Text file, or .npy; it appears when it is complete.  [default: standard output]",
)
@click.option("--labelled", is_flag=True, help="The files hold labels; they are left out.")
@click.option("--parameter-servers", type=click.IntRange(1, 64), default=1, help="[default: 1]")
def predict(
    model: Path,
    files: tuple[Path, ...],
    output: Path | None,
    labelled: bool,
    parameter_servers: int,
) -> int:
    """Write the probability of a click for each sample of FILES, one a line, in their order.

    MODEL is the output folder of `gradmesh train`; the files are of the format it was trained on,
    without the label unless --labelled is given.
    """
    # Imported here, so that --help stays quick.
    import numpy as np

    from gradmesh.launch.scoring import open_scorer

    with open_scorer(model, parameter_servers) as scorer:
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
