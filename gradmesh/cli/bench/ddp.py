"""`gradmesh bench ddp`."""

from pathlib import Path
from typing import Any

import click

_MODELS = ("resnet50", "resnet101", "resnext50_32x4d", "resnext101_32x8d", "mlp")


@click.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(_MODELS),
    help="Model to measure; may be repeated.  [default: mlp and resnet50]",
)
@click.option(
    "--world",
    "worlds",
    default="1,2,4",
    metavar="N,...",
    help="Numbers of processes.  [default: 1,2,4]",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "shm", "tcp"]),
    default="auto",
    help="How the processes talk.  [default: auto]",
)
@click.option(
    "--bucket-mb",
    type=click.FloatRange(min=0, min_open=True),
    default=25.0,
    help="Cap of the buckets in MiB.  [default: 25]",
)
@click.option("--view/--no-view", default=False, help="Let gradients lie in the buckets.")
@click.option("--batch-size", type=click.IntRange(1), help="Examples a process.  [default: 2; 64]")
@click.option("--image-size", type=click.IntRange(32), default=32, help="Pixels.  [default: 32]")
@click.option("--width", type=click.IntRange(2), default=1024, help="Of the mlp.  [default: 1024]")
@click.option(
    "--warmup", type=click.IntRange(1), default=5, help="Iterations not measured.  [default: 5]"
)
@click.option(
    "--rounds", type=click.IntRange(1), default=10, help="Iterations measured.  [default: 10]"
)
@click.option(
    "--against",
    type=click.Choice(["torch"]),
    help="Instead: what DDP adds to a step of the mlp, in turns with torch's DDP over gloo.",
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the results here.")
def ddp(against: str | None, file: Path | None, worlds: str, **options: Any) -> int:
    """Measure training steps under DistributedDataParallel.

    One row for each number of processes: seconds of an iteration and examples a second of one
    process, at four percentiles. The first row is a step without DDP. Sizes are small, so that
    a CPU can do it: --batch-size 32 --image-size 224 are those of the original benchmark.
    """
    sizes = [_world(text) for text in worlds.split(",")]
    if against is not None:
        return _compare(sizes, file, **options)
    return _measure(sizes, file, **options)


def _measure(worlds: list[int], file: Path | None, **options: Any) -> int:
    # Imported here, so that --help stays quick.
    from gradmesh import __version__
    from gradmesh.benchmarks import ddp as benchmark
    from gradmesh.benchmarks.ddp_report import ModelReport, heading, line, write

    header = {
        "gradmesh_version": __version__,
        "cuda_version": None,
        "distributed_backend": options["backend"],
        "bucket_size": options["bucket_mb"],
    }
    for key, value in header.items():
        click.echo(f"{key}: {value}")
    reports = []
    for model in options["models"] or ("mlp", "resnet50"):
        work = _work(model, options)
        click.echo(heading(ModelReport(model, work.batch_size)))
        reports.append(
            benchmark.run(
                work,
                worlds,
                options["backend"],
                options["warmup"],
                options["rounds"],
                lambda *found: click.echo(line(*found)),
            )
        )
    if file is not None:
        write(file, header, reports)
    return 0


def _compare(worlds: list[int], file: Path | None, **options: Any) -> int:
    from gradmesh.benchmarks import ddp as benchmark
    from gradmesh.benchmarks.report import HEADING, show_line, write_json

    if set(options["models"]) - {"mlp"}:
        raise click.BadParameter("only the mlp is compared with torch; leave --model out")
    chosen = [world for world in worlds if world > 1]
    if not chosen:
        raise click.BadParameter("one process has nobody to average with; use --world 2 or more")
    click.echo(HEADING)
    rows = benchmark.compare(
        _work("mlp", options), chosen, options["backend"], options["warmup"], options["rounds"]
    )
    for row in rows:
        click.echo(show_line(row))
    if file is not None:
        write_json(rows, file)
    return 0


def _work(model: str, options: dict[str, Any]) -> Any:
    from gradmesh.benchmarks.ddp import Work

    return Work(
        model=model,
        batch_size=options["batch_size"] or (64 if model == "mlp" else 2),
        image_size=options["image_size"],
        width=options["width"],
        bucket_mb=options["bucket_mb"],
        view=options["view"],
    )


def _world(text: str) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text) <= 64:
        raise click.BadParameter(f"{text!r} is no number of processes between 1 and 64")
    return int(text)
