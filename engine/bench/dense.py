"""The function behind `gradmesh bench dense`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gradmesh.engine.backend.blas import (
    BlasUnavailable,
    get_num_threads,
    set_num_threads,
    use_blas,
)
from gradmesh.engine.backend.memory import keep_freed_pages
from gradmesh.engine.bench import torch_peer, workload
from gradmesh.engine.bench.timing import Row, Step, measure

ROWS = ("mlp-b256", "mlp-b2048", "mlp-b2048-mkl", "embedding-bag", "small-mlp", "resnet50")

_TOP = (1677, 512, 256, 1)
_OURS: dict[str, Callable[[], Step]] = {
    "mlp-b256": lambda: workload.mlp(_TOP, 256),
    "mlp-b2048": lambda: workload.mlp(_TOP, 2048),
    "mlp-b2048-mkl": lambda: workload.mlp(_TOP, 2048),
    "embedding-bag": workload.embedding_bag,
    "small-mlp": workload.small_mlp,
    "resnet50": workload.resnet50,
}
_PEER: dict[str, Callable[[Any], Step]] = {
    "mlp-b256": lambda torch: torch_peer.mlp(torch, _TOP, 256),
    "mlp-b2048": lambda torch: torch_peer.mlp(torch, _TOP, 2048),
    "mlp-b2048-mkl": lambda torch: torch_peer.mlp(torch, _TOP, 2048),
    "embedding-bag": torch_peer.embedding_bag,
    "small-mlp": lambda torch: torch_peer.mlp(torch, (16, 8, 1), 8, "SGD"),
    "resnet50": torch_peer.resnet50,
}
_INNER = {"small-mlp": 50}


def bench_dense(
    against: str | None = None,
    *,
    rows: Sequence[str] = ROWS,
    seconds: float = 5.0,
    threads: int = 1,
) -> list[Row]:
    """Measure the dense workloads, each alternately with the peer.

    Args:
        against: `"torch"`, or None to measure ours alone.
        rows: Which workloads, of `ROWS`; the MKL row is left out where MKL is not installed.
        seconds: How long to measure each.
        threads: Threads on both sides.

    Returns:
        One row per workload.

    Raises:
        ValueError: If a workload or peer has no such name.
        TorchMissing: If torch is asked for and not installed.
    """
    unknown = [name for name in rows if name not in ROWS]
    if unknown:
        raise ValueError(f"no workloads {unknown}; there are {', '.join(ROWS)}")
    if against not in (None, "torch"):
        raise ValueError(f"no peer {against!r}; there is 'torch'")
    keep_freed_pages()
    before = get_num_threads()
    torch = torch_peer.load_torch(threads) if against else None
    set_num_threads(threads)
    try:
        return [row for name in rows for row in _bench(name, torch, seconds, threads)]
    finally:
        set_num_threads(before)


def _bench(name: str, torch: Any, seconds: float, threads: int) -> Iterator[Row]:
    with contextlib.ExitStack() as stack:
        if name.endswith("-mkl"):
            try:
                stack.enter_context(use_blas("mkl"))
            except BlasUnavailable:
                return
        peer = _PEER[name](torch) if torch is not None else None
        inner = _INNER.get(name, 1)
        yield measure(name, _OURS[name](), peer, seconds=seconds, inner=inner, threads=threads)
