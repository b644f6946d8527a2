"""Send hostile bytes to every border of the system: `make fuzz`.

    FUZZ_FRAMES=n      frames in all, 1 000 000 by default
    FUZZ_SECONDS=n     time for all targets together, instead of a number of frames
    FUZZ_SEEDS=A..B    these seeds of each target, to repeat a finding; else they begin at the date
    FUZZ_TARGETS=a,b   some of the targets: grpc, stream, tcp, shm, names, shm-race, log,
                       checkpoint, config, process-group

The targets of a cluster run one after the other, beside those of files and ports.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

from tests.fuzz.batch import Target
from tests.fuzz.cluster import FuzzCluster, started_cluster
from tests.fuzz.cluster_target import ClusterTarget
from tests.fuzz.lane_target import ShmTarget, StreamTarget, TcpTarget
from tests.fuzz.names_target import NamesTarget
from tests.fuzz.racing_target import RacingTarget
from tests.fuzz.report import FuzzReport
from tests.fuzz.sandbox import (
    CheckpointTarget,
    ConfigTarget,
    LogTarget,
    ProcessGroupTarget,
    SandboxTarget,
)
from tests.fuzz.unary_target import UnaryTarget
from tests.parity.fuzz.seeds import Budget, budget, seeds

ON_CLUSTER: tuple[type[ClusterTarget], ...] = (
    UnaryTarget,
    StreamTarget,
    TcpTarget,
    ShmTarget,
    NamesTarget,
    RacingTarget,
)
"""Targets that share a cluster."""
IN_SANDBOX: tuple[type[SandboxTarget], ...] = (
    LogTarget,
    CheckpointTarget,
    ConfigTarget,
    ProcessGroupTarget,
)
"""Targets with a process of their own."""

_FRAMES = 1_000_000
_FOLDER = Path("fuzz-findings")
# A defect in a common path would repeat for hours.
_MOST_FINDINGS = 20


def chosen(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the targets to run.

    Raises:
        ValueError: FUZZ_TARGETS names another one; says which there are.
    """
    known = [kind.name for kind in (*ON_CLUSTER, *IN_SANDBOX)]
    wanted = [name for name in environment.get("FUZZ_TARGETS", "").split(",") if name]
    for name in wanted:
        if name not in known:
            raise ValueError(f"FUZZ_TARGETS names {name!r}; there are {', '.join(known)}")
    return wanted or known


def budgets(environment: Mapping[str, str], names: Sequence[str]) -> dict[str, Budget]:
    """Return the seeds or the time of each target."""
    whole = budget(environment)
    kinds = {kind.name: kind for kind in (*ON_CLUSTER, *IN_SANDBOX) if kind.name in names}
    if whole.last is not None:
        return dict.fromkeys(kinds, whole)
    if environment.get("FUZZ_SECONDS"):
        # The two groups run at the same time.
        groups = (ON_CLUSTER, IN_SANDBOX)
        most = max(sum(kind.name in kinds for kind in group) for group in groups)
        each = Budget(whole.first, None, (whole.seconds or 0.0) / most)
        return dict.fromkeys(kinds, each)
    text = environment.get("FUZZ_FRAMES", "") or str(_FRAMES)
    if not text.isdecimal():
        raise ValueError(f"FUZZ_FRAMES is {text!r}; give a number, for instance 100000")
    shares = sum(kind.share for kind in kinds.values())
    counts = {
        name: -(-round(int(text) * kind.share / shares) // kind.frames)
        for name, kind in kinds.items()
    }
    return {name: Budget(whole.first, whole.first + n - 1) for name, n in counts.items()}


def run_target(target: Target, asked: Budget, report: FuzzReport) -> None:
    """Run the seeds of a target."""
    for seed in seeds(asked):
        begun = time.monotonic()
        report.add(target.name, seed, target.run(seed), time.monotonic() - begun)
        if report.findings(target.name) >= _MOST_FINDINGS:
            return


def run_group(
    makers: Sequence[Callable[[], Target]], asked: Mapping[str, Budget], report: FuzzReport
) -> None:
    """Run targets one after the other."""
    for make in makers:
        with closing(make()) as target:
            run_target(target, asked[target.name], report)


def _on(cluster: FuzzCluster, names: Sequence[str]) -> Iterator[Callable[[], Target]]:
    for kind in ON_CLUSTER:
        if kind.name in names:
            yield lambda kind=kind: kind(cluster)


def main() -> int:
    """Run what the variables ask for; return 1 if there are findings."""
    logging.disable(logging.CRITICAL)
    names = chosen(os.environ)
    asked = budgets(os.environ, names)
    for name, one in asked.items():
        print(f"fuzz: {name}: {one}", flush=True)
    report = FuzzReport(_FOLDER)
    with ExitStack() as undo, ThreadPoolExecutor(2) as pool:
        groups: list[Sequence[Callable[[], Target]]] = []
        if any(kind.name in names for kind in ON_CLUSTER):
            cluster = undo.enter_context(started_cluster())
            groups.append(list(_on(cluster, names)))
        groups.append([kind for kind in IN_SANDBOX if kind.name in names])
        for job in [pool.submit(run_group, group, asked, report) for group in groups]:
            job.result()
    return report.summarize()


if __name__ == "__main__":
    sys.exit(main())
