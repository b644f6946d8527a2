"""Output of the DDP benchmark: tables, files, and the comparison of two files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from gradmesh.benchmarks.report import BadOption, Echo

PERCENTILES = (50, 75, 90, 95)
_PAD = 22


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """The iterations of one set of ranks."""

    ranks: tuple[int, ...]
    """Who took part."""
    measurements: tuple[float, ...]
    """Seconds of every iteration of every rank."""

    def seconds(self, percentile: int) -> float:
        """Return a percentile of the seconds."""
        return float(np.percentile(self.measurements, percentile))


@final
@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model on growing numbers of ranks; the first set is without DDP."""

    model: str
    """Its name."""
    batch_size: int
    """Examples of one rank in one iteration."""
    result: list[Measured] = field(default_factory=list)
    """One entry for each set of ranks."""


def heading(report: ModelReport) -> str:
    """Return the title and the heading of a model's table."""
    columns = "".join(f"{'sec/iter':>14}{'ex/sec':>10}" for _ in PERCENTILES)
    title = f"Benchmark: {report.model} with batch size {report.batch_size}"
    return f"\n{title}\n\n{'':<{_PAD}}{columns}"


def line(
    report: ModelReport, measured: Measured, label: str, hidden: float | None, device: str = "CPUs"
) -> str:
    """Return a row: seconds and examples a second of one rank, at each percentile.

    Args:
        report: The model's report.
        measured: The set of ranks.
        label: What the set is called.
        hidden: Share of the communication that backward hid, if there was any.
        device: What a rank computes on.
    """
    cells = []
    for percentile in PERCENTILES:
        seconds = measured.seconds(percentile)
        rate = report.batch_size / seconds
        cells.append(f"  p{percentile:02d}: {seconds:>7.3f}s {_rate(rate):>6}/s")
    name = f"{len(measured.ranks):>4} {device} -- {label}:"
    tail = "" if hidden is None else f"  ({hidden:.0%} of communication hidden)"
    return f"{name:<{_PAD}}" + "".join(cells) + tail


def _rate(rate: float) -> str:
    """Return examples a second; big models on a CPU make few."""
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2f}"


def content(header: Mapping[str, Any], reports: Sequence[ModelReport]) -> dict[str, Any]:
    """Return everything as one JSON object."""
    return {
        **header,
        "benchmark_results": [
            {
                "model": report.model,
                "batch_size": report.batch_size,
                "result": [
                    {"ranks": list(m.ranks), "measurements": list(m.measurements)}
                    for m in report.result
                ],
            }
            for report in reports
        ],
    }


def read(file: Path) -> tuple[dict[str, Any], list[ModelReport]]:
    """Return header and reports of a file.

    Raises:
        ValueError: It is not a file of this benchmark.
    """
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
        reports = [
            ModelReport(
                entry["model"],
                entry["batch_size"],
                [Measured(tuple(m["ranks"]), tuple(m["measurements"])) for m in entry["result"]],
            )
            for entry in whole.pop("benchmark_results")
        ]
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} was not written by gradmesh bench ddp --json") from error
    return whole, reports


def compare(base: Path, test: Path) -> Iterator[str]:
    """Yield the lines of a comparison of two files: what differs in the headers, then p75 and p95.

    Sets without DDP, and those whose numbers of ranks differ, are left out. Positive means that
    the second file is faster.
    """
    (base_header, base_reports), (test_header, test_reports) = read(base), read(test)
    yield f"{'baseline':>40}{'test':>20}"
    for key in dict.fromkeys([*base_header, *test_header]):
        ours, theirs = base_header.get(key), test_header.get(key)
        if ours != theirs:
            yield f"{key:<20}{ours!s:>20}{theirs!s:>20}"
    known = {report.model: report for report in base_reports}
    for report in test_reports:
        if report.model in known:
            yield from _compare_models(known[report.model], report)


def _compare_models(base: ModelReport, test: ModelReport) -> Iterator[str]:
    columns = "".join(f"{'sec/iter':>16}{'ex/sec':>10}{'diff':>10}" for _ in (75, 95))
    yield f"\nBenchmark: {test.model} with batch size {test.batch_size}\n\n{'':<10}{columns}"
    pairs = zip(base.result[1:], test.result[1:], strict=False)
    for old, new in pairs:
        if len(old.ranks) != len(new.ranks):
            continue
        cells = []
        for percentile in (75, 95):
            before, now = old.seconds(percentile), new.seconds(percentile)
            delta = -100 * (now - before) / before
            rate = test.batch_size / now
            cells.append(f"  p{percentile:02d}: {now:>8.3f}s {_rate(rate):>7}/s {delta:>+8.1f}%")
        yield f"{len(new.ranks):>4} ranks" + "".join(cells)


def command(echo: Echo, *, base: Path, test: Path) -> None:
    """Run `gradmesh bench diff`."""
    try:
        lines = list(compare(base, test))
    except ValueError as error:
        raise BadOption(str(error)) from error
    for text in lines:
        echo(text)
