"""Reports of benchmarks: one row per workload, as JSON for programs and as a table for people.

Each benchmark has a function that `gradmesh bench` calls with its options: it prints rows as they
are measured, and returns what `--json` writes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias, final

import numpy as np

Echo: TypeAlias = Callable[[str], object]
"""Prints a line."""


class BadOption(ValueError):
    """An option of a benchmark cannot be used; says why."""


class JsonRow(Protocol):
    """A row of any benchmark."""

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON holds it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One workload.

    Args:
        workload: Its name.
        ours: Median seconds of ours.
        ours_p95: 95th percentile of ours.
        peer: Median seconds of the peer; None when it was not asked.
        peer_p95: 95th percentile of the peer.
        ratio: How many times faster ours is, at the median.
        samples: Calls measured on each side.
    """

    workload: str
    ours: float
    ours_p95: float
    peer: float | None
    peer_p95: float | None
    ratio: float | None
    samples: int

    @classmethod
    def of(cls, workload: str, ours: Sequence[float], peer: Sequence[float]) -> "Row":
        """Return the row of two lists of seconds; the peer's may be empty."""
        middle = float(np.median(ours))
        theirs = float(np.median(peer)) if peer else None
        return cls(
            workload=workload,
            ours=middle,
            ours_p95=float(np.percentile(ours, 95)),
            peer=theirs,
            peer_p95=float(np.percentile(peer, 95)) if peer else None,
            ratio=theirs / middle if theirs is not None else None,
            samples=len(ours),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON holds it."""
        return asdict(self)


def as_json(rows: Iterable[JsonRow]) -> list[dict[str, Any]]:
    """Return all rows as JSON holds them."""
    return [row.as_dict() for row in rows]


def show_line(row: Row) -> str:
    """Return a row as a line of the table."""
    peer = "-" if row.peer is None else f"{row.peer * 1e6:,.0f}"
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    ours = f"{row.ours * 1e6:>12,.0f}{row.ours_p95 * 1e6:>12,.0f}"
    return f"{row.workload:<20}{ours}{peer:>12}{ratio:>9}"


HEADING = f"{'workload':<20}{'ours p50 µs':>12}{'p95 µs':>12}{'peer p50 µs':>12}{'ratio':>9}"
