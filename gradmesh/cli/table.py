"""`gradmesh table ls|inspect|export|import|checkpoint|restore`."""

import dataclasses
from pathlib import Path

import click

from gradmesh.cli.cluster_options import with_mesh
from gradmesh.cli.display import RowBar, print_table
from gradmesh.cli.options import json_option
from gradmesh.cli.output import echo, echo_json
from gradmesh.engine import optim
from gradmesh.protos.common.v1 import array_pb2
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import wire_dtype
from gradmesh.sdk.checkpoint.manifest import Manifest
from gradmesh.sdk.checkpoint.transfer import check_import, reader_for
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.table.inspect import TableReport, inspect_table

_LONG_S = 3600.0
_OPTIMIZERS = {
    "sgd": optim.SGD,
    "adagrad": optim.Adagrad,
    "rowwise-adagrad": optim.RowwiseAdagrad,
    "adam": optim.Adam,
}
_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.group()
def table() -> None:
    """List, inspect, save and restore tables."""


@table.command("ls")
@json_option
@with_mesh(30.0)
def list_tables(mesh: Mesh, timeout_s: float, as_json: bool) -> int:
    """List all tables."""
    connection = mesh.connection
    servers, deadline = connection.servers, connection.deadline
    specs = connection.coordinator.list_tables(deadline())
    found = [inspect_table(servers, spec.name, deadline()) for spec in specs]
    if as_json:
        echo_json([dataclasses.asdict(report) for report in found])
        return 0
    columns = ("name", "kind", "rows", "dim", "dtype", "optimizer", "bytes", "steps")
    print_table(columns, [_line(report) for report in found])
    return 0


def _line(report: TableReport) -> list[str]:
    spec, steps = report.spec, [server["steps"] for server in report.servers.values()]
    return [
        spec["name"],
        spec["kind"],
        f"{report.total('rows'):,}",
        str(spec["dim"]),
        spec["dtype"],
        spec["optimizer"],
        f"{report.total('bytes'):,}",
        str(max(steps)),
    ]


@table.command("inspect")
@click.argument("name")
@json_option
@with_mesh(30.0)
def inspect(mesh: Mesh, timeout_s: float, name: str, as_json: bool) -> int:
    """Show the definition of a table, and its share on each server."""
    connection = mesh.connection
    report = inspect_table(connection.servers, name, connection.deadline())
    if as_json:
        echo_json(dataclasses.asdict(report))
        return 0
    for key, value in report.spec.items():
        if value:
            echo(f"{key + ':':<13}{value}")
    # One column per server, because there are more metrics than servers.
    figures = next(iter(report.servers.values()))
    lines = [
        [figure.replace("_", " "), *(_shown(s[figure]) for s in report.servers.values())]
        for figure in figures
    ]
    print_table(("", *report.servers), lines)
    return 0


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


@table.command("export")
@click.argument("name")
@_file
@with_mesh(_LONG_S)
def export(mesh: Mesh, timeout_s: float, name: str, file: Path) -> int:
    """Write ids and rows of a table to FILE (.safetensors, .npz or .parquet), sorted by id."""
    source = mesh.open_table(name)
    with RowBar(f"exporting {name}") as bar:
        count = mesh.export_table(source, file, progress=bar, timeout_s=timeout_s)
    echo(f"{count:,} rows of {name} are in {file}")
    return 0


@table.command("import")
@click.argument("name")
@_file
@click.option("--create", is_flag=True, help="Create the table with the file's dim.")
@click.option(
    "--rows", type=click.IntRange(min=1), help="Rows of a new table; none for a hash table."
)
@click.option(
    "--optimizer",
    type=click.Choice(list(_OPTIMIZERS)),
    default="sgd",
    help="Optimizer of a new table.",
)
@click.option(
    "--lr", type=click.FloatRange(min=0), default=0.01, help="Learning rate of a new table."
)
@with_mesh(_LONG_S)
def import_file(
    mesh: Mesh,
    timeout_s: float,
    name: str,
    file: Path,
    create: bool,
    rows: int | None,
    optimizer: str,
    lr: float,
) -> int:
    """Set rows of a table from FILE, as export writes it; the whole file is checked first."""
    if create:
        reader = reader_for(file)
        # Before the table is created: a bad file must change nothing.
        wanted = table_pb2.TableSpec(
            name=name,
            rows=rows,
            dim=reader.dim,
            dtype=array_pb2.ElementType.Name(wire_dtype(reader.dtype)),
        )
        check_import(wanted, file, timeout_s)
        rule = _OPTIMIZERS[optimizer](lr=lr)
        target = mesh.table(name, rows=rows, dim=reader.dim, dtype=reader.dtype, optimizer=rule)
    else:
        target = mesh.open_table(name)
    with RowBar(f"importing {name}") as bar:
        count = mesh.import_table(target, file, progress=bar, timeout_s=timeout_s)
    echo(f"{count:,} rows of {file} are in {name}")
    return 0


@table.command("checkpoint")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--table", "tables", multiple=True, help="Only this table; may be repeated.")
@click.option(
    "--base",
    type=click.Path(path_type=Path, file_okay=False),
    help="The previous checkpoint; only rows changed since then are written.",
)
@with_mesh(_LONG_S)
def checkpoint(
    mesh: Mesh, timeout_s: float, folder: Path, tables: tuple[str, ...], base: Path | None
) -> int:
    """Write all tables with their optimizer state to FOLDER while training continues."""
    with RowBar("saving") as bar:
        made = mesh.checkpoint(
            folder, tables=tables or None, base=base, progress=bar, timeout_s=timeout_s
        )
    echo(f"{folder}: {_sum(made)}")
    return 0


@table.command("restore")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@with_mesh(_LONG_S)
def restore(mesh: Mesh, timeout_s: float, folder: Path) -> int:
    """Restore tables from the checkpoint in FOLDER; it is verified first."""
    with RowBar("restoring") as bar:
        made = mesh.restore(folder, progress=bar, timeout_s=timeout_s)
    connection = mesh.connection
    count = len(connection.servers.shard_map(connection.deadline()).names)
    echo(f"{folder}: {_sum(made)}, on {count} servers")
    return 0


@table.command("reset")
@click.argument("name")
@click.confirmation_option(prompt="All rows of the table will be lost. Continue?")
@with_mesh(30.0)
def reset(mesh: Mesh, timeout_s: float, name: str) -> int:
    """Reset a table to its initial rows; reopens one that an interrupted restore left closed."""
    mesh.reset_table(mesh.open_table(name), timeout_s=timeout_s)
    echo(f"{name} is back at its first rows")
    return 0


def _sum(made: Manifest) -> str:
    kind = "full" if made.base is None else f"adding to {made.base.path}"
    return (
        f"checkpoint {made.id[:8]} ({kind}), {len(made.tables)} tables, {made.rows:,} rows, "
        f"{made.bytes:,} bytes, step {made.step} of generation {made.generation}"
    )
