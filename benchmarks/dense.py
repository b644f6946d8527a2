"""Dense layers and an embedding bag in one process, forward, backward and step, against torch.

Both sides take turns, so that a noisy machine treats them alike.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from gradmesh.benchmarks import dense_steps
from gradmesh.benchmarks.report import HEADING, Echo, Row, as_json, show_line
from gradmesh.engine.backend.blas import (
    BlasUnavailable,
    get_num_threads,
    set_num_threads,
    use_blas,
)
from gradmesh.engine.backend.memory import keep_freed_pages

Step = Callable[[], object]


class DenseLoad(NamedTuple):
    """One workload of the benchmark.

    Args:
        ours: Makes one step of ours.
        peer: Makes one step of the peer's from the torch module.
        inner: Steps per measurement, for steps too short to time alone.
    """

    ours: Callable[[], Step]
    peer: Callable[[Any], Step]
    inner: int = 1


def _mlp(sizes: Sequence[int], batch: int, optimizer: str = "Adagrad", inner: int = 1) -> DenseLoad:
    return DenseLoad(
        lambda: dense_steps.our_mlp(sizes, batch, optimizer),
        lambda torch: dense_steps.torch_mlp(torch, sizes, batch, optimizer),
        inner,
    )


_TOP = (1677, 512, 256, 1)
LOADS: dict[str, DenseLoad] = {
    "mlp-b256": _mlp(_TOP, 256),
    "mlp-b2048": _mlp(_TOP, 2048),
    "mlp-b2048-mkl": _mlp(_TOP, 2048),
    "embedding-bag": DenseLoad(dense_steps.our_embedding_bag, dense_steps.torch_embedding_bag),
    "small-mlp": _mlp((16, 8, 1), 8, "SGD", inner=50),
    "resnet50": DenseLoad(dense_steps.our_resnet50, dense_steps.torch_resnet50),
}
"""Workloads by name; in one whose name ends in -mkl our products are MKL's."""


def run(
    against: str | None = None,
    *,
    workloads: Sequence[str] = tuple(LOADS),
    seconds: float = 5.0,
    threads: int = 1,
    on_row: Callable[[Row], object] = lambda row: None,
) -> list[Row]:
    """Measure workloads, each in turns with the peer.

    Args:
        against: `"torch"`, or None to measure ours alone.
        workloads: Which of `LOADS`; the MKL row is left out where MKL is not installed.
        seconds: How long to measure each, five rounds at least.
        threads: Threads on both sides.
        on_row: Called with each row as it is known.

    Raises:
        ValueError: If a workload or peer has no such name.
        TorchMissing: If torch is asked for and not installed.
    """
    unknown = [name for name in workloads if name not in LOADS]
    if unknown:
        raise ValueError(f"no workloads {unknown}; there are {', '.join(LOADS)}")
    if against not in (None, "torch"):
        raise ValueError(f"no peer {against!r}; there is 'torch'")
    keep_freed_pages()
    before = get_num_threads()
    torch = dense_steps.load_torch(threads) if against else None
    set_num_threads(threads)
    rows = []
    try:
        for name in workloads:
            for row in _measure(name, torch, seconds):
                rows.append(row)
                on_row(row)
    finally:
        set_num_threads(before)
    return rows


def _measure(name: str, torch: Any, seconds: float) -> Iterator[Row]:
    load = LOADS[name]
    with contextlib.ExitStack() as stack:
        if name.endswith("-mkl"):
            try:
                stack.enter_context(use_blas("mkl"))
            except BlasUnavailable:
                return
        sides = [load.ours()] if torch is None else [load.ours(), load.peer(torch)]
        for step in sides:
            _time(step, min(3, load.inner))
        times: list[list[float]] = [[] for _ in sides]
        end = time.perf_counter() + seconds
        while len(times[0]) < 5 or time.perf_counter() < end:
            for step, kept in zip(sides, times, strict=True):
                kept.append(_time(step, load.inner))
        yield Row.of(name, times[0], times[1] if torch is not None else [])


def _time(step: Step, inner: int) -> float:
    start = time.perf_counter()
    for _ in range(inner):
        step()
    return (time.perf_counter() - start) / inner


def command(
    echo: Echo, *, against: str | None, workloads: Sequence[str], seconds: float, threads: int
) -> Any:
    """Run `gradmesh bench dense`."""
    echo(HEADING)
    return as_json(
        run(
            against,
            workloads=workloads,
            seconds=seconds,
            threads=threads,
            on_row=lambda row: echo(show_line(row)),
        )
    )
