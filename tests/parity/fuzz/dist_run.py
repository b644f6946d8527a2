"""Run random programs of distributed autograd over four workers: `make fuzz-dist`.

The reference is the same program with local autograd in one process. Forward values are equal bit
for bit, and so are gradients where calls follow each other. Where calls of one context overlap, a
worker adds in the order of arrival, and gradients are equal within eight rounding errors of the
largest element. Also compared: which leaves have gradients, on which worker; that a failed pass
changes nothing; and what workers still hold afterwards.

FUZZ_SEEDS=A..B and FUZZ_SECONDS say which programs. A failure is shrunk and printed; the program
itself may be given as an argument to run it again.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter

from tests.parity.fuzz import dist_graph
from tests.parity.fuzz.dist_draw import draw
from tests.parity.fuzz.dist_graph import Call, Op, Program
from tests.parity.fuzz.dist_shrink import shrink
from tests.parity.fuzz.dist_workers import WorkerFleet
from tests.parity.fuzz.seeds import Budget, Progress, budget, seeds

REPLAY = "FUZZ_SEEDS={seed} make fuzz-dist"

# Programs between two checks for leaks on workers.
_LOOK_EVERY = 50
# Shrinking takes its time: the first failures are enough to begin with.
_MOST_SHRUNK = 5


def report(program: Program, found: list[str], fleet: WorkerFleet, shrinks: bool) -> str:
    """Return a failure in words: the program, smaller if possible, and the differences."""
    small = shrink(program, fleet.compare) if shrinks else program
    texts = "\n".join(text[:2000] for text in (fleet.compare(small) or found)[:8])
    return f"{small}\n{texts}\nrun again: python -m tests.parity.fuzz.dist_run '{small!r}'"


def covered(program: Program) -> Counter[str]:
    """Return the names of the features that a program covers."""
    names: Counter[str] = Counter()
    for graph in program.graphs:
        for step in graph.steps():
            names[step.name if isinstance(step, Op) else f"call {step.how}"] += 1
            nested = isinstance(step, Call) and any(isinstance(s, Call) for s in step.steps)
            names["nested call"] += nested
        names["several passes"] += len(graph.stages) > 1
        names["several roots"] += any(len(stage.roots) > 1 for stage in graph.stages)
        names["pass that fails"] += any(stage.fails for stage in graph.stages)
        names["fast pass"] += any(stage.mode == "fast" for stage in graph.stages)
        names["root elsewhere"] += any(stage.there for stage in graph.stages)
    names["two contexts"] += len(program.graphs) > 1
    names[f"optimizer {program.optimizer}" if program.optimizer else "no optimizer"] += 1
    names["calls overlap"] += program.overlaps
    return +names


def run(asked: Budget, progress: Progress) -> None:
    """Run the programs of a budget."""
    fleet, since = WorkerFleet(), asked.first
    try:
        for count, seed in enumerate(seeds(asked), 1):
            program = draw(seed)
            found = fleet.compare(program)
            progress.count(1, covered(program))
            if found:
                text = report(program, found, fleet, len(progress.failed) < _MOST_SHRUNK)
                progress.fail(seed, text)
                # A program that failed half-way may have leaked something.
                fleet.close()
                fleet = WorkerFleet()
            elif count % _LOOK_EVERY == 0 or seed == asked.last:
                left = fleet.left_behind()
                if left:
                    progress.fail(seed, f"after seeds {since}..{seed}: " + "; ".join(left))
                    fleet.close()
                    fleet = WorkerFleet()
                since = seed + 1
        left = fleet.left_behind()
        if left:
            progress.fail(since, "after the last seeds: " + "; ".join(left))
    finally:
        fleet.close()


def run_text(text: str) -> int:
    """Run one program given as text; return 1 if it fails."""
    program, fleet = eval(text, vars(dist_graph).copy()), WorkerFleet()
    try:
        found = fleet.compare(program) or fleet.left_behind()
    finally:
        fleet.close()
    print(program, *(found or ["no difference"]), sep="\n")
    return 1 if found else 0


def main(arguments: list[str]) -> int:
    """Run the budget, or the program that is given; return 1 if something differs."""
    logging.disable(logging.WARNING)
    if arguments:
        return run_text(arguments[0])
    asked = budget(seconds=120)
    print(f"fuzz-dist: {asked}", flush=True)
    progress = Progress("fuzz-dist", REPLAY)
    run(asked, progress)
    return progress.summarize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
