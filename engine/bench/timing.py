"""Timing two sides alternately, so that a noisy machine treats both alike."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Step: TypeAlias = Callable[[], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One measured workload; times are seconds, p50, and a ratio above 1 means we are faster."""

    workload: str
    ours: float
    peer: float | None
    ratio: float | None
    repeats: int
    threads: int
    ours_min: float
    peer_min: float | None


def measure(
    workload: str, ours: Step, peer: Step | None, *, seconds: float, inner: int, threads: int
) -> Row:
    """Run both sides in turn until the time is up.

    Args:
        workload: Name of the row.
        ours: One step of ours.
        peer: One step of the peer, or None.
        seconds: How long to measure, at least five rounds.
        inner: Steps per round, for steps too short to time alone.
        threads: Threads in use, for the record.
    """
    sides = [ours] if peer is None else [ours, peer]
    for side in sides:
        _round(side, max(1, min(3, inner)))
    times: list[list[float]] = [[] for _ in sides]
    end = time.perf_counter() + seconds
    while len(times[0]) < 5 or time.perf_counter() < end:
        for side, kept in zip(sides, times, strict=True):
            kept.append(_round(side, inner))
    middle = [statistics.median(kept) for kept in times]
    least = [min(kept) for kept in times]
    return Row(
        workload=workload,
        ours=middle[0],
        peer=middle[1] if peer else None,
        ratio=middle[1] / middle[0] if peer else None,
        repeats=len(times[0]) * inner,
        threads=threads,
        ours_min=least[0],
        peer_min=least[1] if peer else None,
    )


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text."""
    lines = [f"{'workload':<16}{'ours':>12}{'peer':>12}{'ratio':>8}"]
    for row in rows:
        peer = "-" if row.peer is None else f"{row.peer * 1e3:.3f} ms"
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"{row.workload:<16}{row.ours * 1e3:>9.3f} ms{peer:>12}{ratio:>8}")
    return "\n".join(lines)


def write_json(rows: Sequence[Row], path: str | Path) -> None:
    """Write the rows as a JSON array of objects."""
    content = json.dumps([dataclasses.asdict(row) for row in rows], indent=2)
    Path(path).write_text(content + "\n", encoding="utf-8")


def _round(step: Step, inner: int) -> float:
    start = time.perf_counter()
    for _ in range(inner):
        step()
    return (time.perf_counter() - start) / inner
