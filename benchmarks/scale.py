"""Scaling of the hybrid step with processes, batch size and table size; ours alone.

Bytes are those that a trainer moved in a step, compared with the least that the same step needs:
each distinct row once to the trainer and its gradient once back, dense gradients once each way.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import numpy as np

from gradmesh.benchmarks.hybrid import BYTES, MEMORY, TOTAL, measure, our_side, rate
from gradmesh.benchmarks.hybrid_shape import VARIANTS, Shape
from gradmesh.benchmarks.report import Echo, as_json


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRow:
    """One size.

    Args:
        workload: Its name.
        seconds: Median of a step.
        samples_per_s: Of all trainers.
        distinct: Distinct rows of a trainer's batch, as a share of its ids.
        bytes: That a trainer moves in a step, sent and received.
        least_bytes: The least that the same step needs.
        memory: Most bytes that a trainer had in memory.
        table_memory: Bytes of all rows together.
    """

    workload: str
    seconds: float
    samples_per_s: float
    distinct: float
    bytes: float
    least_bytes: int
    memory: float
    table_memory: int

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON holds it."""
        return asdict(self)


def sizes(rows: int) -> list[Shape]:
    """Return the workloads: 1, 2 and 4 processes a side, four batches, three sizes of tables."""
    base = Shape(
        name="base", trainers=1, servers=1, tables=26, rows=rows, dim=16, hidden=(64,), batch=512
    )
    grown = [replace(base, name=f"t{n}-s{n}", trainers=n, servers=n) for n in (1, 2, 4)]
    grown += [replace(base, name=f"batch-{n}", batch=n) for n in (128, 512, 2048)]
    return grown + [replace(base, name=f"rows-{n}", rows=n) for n in (rows // 10, rows, rows * 4)]


def run(
    chosen: Sequence[Shape], seconds: float, on_row: Callable[[ScaleRow], object]
) -> list[ScaleRow]:
    """Measure sizes.

    Args:
        chosen: Which.
        seconds: About how long each takes.
        on_row: Called with each row as it is known.
    """
    found = []
    for shape in chosen:
        with ExitStack() as stack:
            side = stack.enter_context(our_side(shape, "auto"))
            measure([side], seconds, blocks=1)
            times = np.concatenate(side.times, axis=1)
        distinct = distinct_rows(shape)
        found.append(
            ScaleRow(
                workload=shape.name,
                seconds=float(np.median(times[:, :, TOTAL])),
                samples_per_s=rate(times),
                distinct=distinct / (shape.batch * shape.tables),
                bytes=float(times[:, :, BYTES].mean()),
                least_bytes=least_bytes(shape, distinct),
                memory=float(times[:, :, MEMORY].max()),
                table_memory=4 * shape.tables * shape.rows * shape.dim,
            )
        )
        on_row(found[-1])
    return found


def distinct_rows(shape: Shape) -> float:
    """Return how many distinct rows a batch of a shape asks for, in the mean."""
    counts = []
    for variant in range(VARIANTS):
        ids = shape.load(0, variant).ids
        counts.append(sum(np.unique(ids[:, table]).size for table in range(shape.tables)))
    return float(np.mean(counts))


def least_bytes(shape: Shape, distinct: float) -> int:
    """Return the bytes that a trainer must move in a step, without ids and headers."""
    pairs = zip(shape.sizes[:-1], shape.sizes[1:], strict=True)
    dense = sum((m + 1) * n for m, n in pairs) if shape.trainers > 1 else 0
    # Reduced by all ranks together, each gradient crosses to others and back once, less its share.
    crossing = 2 * dense * (shape.trainers - 1) / shape.trainers
    return int(4 * (2 * distinct * shape.dim + crossing))


def command(echo: Echo, *, rows: int, seconds: float) -> Any:
    """Run `gradmesh bench scale`."""
    echo(
        f"{'size':<14}{'ms, p50':>9}{'samples/s':>12}{'distinct':>10}{'KiB':>9}{'of least':>10}"
        f"{'MiB':>7}{'tables':>8}"
    )

    def show(row: ScaleRow) -> None:
        echo(
            f"{row.workload:<14}{row.seconds * 1e3:>9.2f}{row.samples_per_s:>12,.0f}"
            f"{row.distinct:>10.3f}{row.bytes / 1024:>9,.0f}{row.bytes / row.least_bytes:>10.2f}"
            f"{row.memory / 2**20:>7,.0f}{row.table_memory / 2**20:>8,.0f}"
        )

    return as_json(run(sizes(rows), seconds, show))
