"""Fuzz the engine against torch: `make fuzz-engine`, or one seed: `FUZZ_SEEDS=17 make fuzz-engine`.

FUZZ_SEEDS=A..B, FUZZ_SECONDS and FUZZ_PROCESSES say how much. FUZZ_TOLERATED=n ends with 0 where at
most n seeds differ: what is broken differs in hundreds of fresh seeds, a rare rounding in one.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import sys
import time
from collections import Counter
from typing import Any

from tests.parity.fuzz.generate import generate
from tests.parity.fuzz.seeds import Budget, Progress, budget
from tests.parity.fuzz.worker import work

REPLAY = "FUZZ_SEEDS={seed} make fuzz-engine"
# A process that is silent for this long hangs; a report takes a while.
_SILENCE_S = 120.0


def main() -> int:
    """Run the budget that the environment names and return the exit code."""
    given = budget()
    shares = max(int(os.environ.get("FUZZ_PROCESSES") or 1), 1)
    print(f"fuzz-engine: {given}, {shares} processes", flush=True)
    crew = Crew(given, shares)
    progress = Progress("fuzz-engine", REPLAY)
    try:
        collect(crew, progress)
    finally:
        crew.end()
    return progress.summarize(tolerated=int(os.environ.get("FUZZ_TOLERATED") or 0))


class Crew:
    """Processes that share the seeds; one that dies is replaced, after the seed it died of."""

    def __init__(self, given: Budget, shares: int) -> None:
        self._given, self._shares = given, shares
        self._end = None if given.seconds is None else time.monotonic() + given.seconds
        self._context = multiprocessing.get_context("spawn")
        self.results = self._context.Queue()
        self.current = [self._context.Value("q", given.first + k - shares) for k in range(shares)]
        self.running = {k: self._start(k) for k in range(shares)}

    def _start(self, share: int) -> Any:
        first = self.current[share].value + self._shares - share
        left = None if self._end is None else max(self._end - time.monotonic(), 0.0)
        rest = Budget(first, self._given.last, left)
        arguments = (share, self._shares, rest, self.results, self.current[share])
        process = self._context.Process(target=work, args=arguments, daemon=True)
        process.start()
        return process

    def replace(self, share: int) -> int:
        """Replace a process; return the seed that the former one died of."""
        seed = int(self.current[share].value)
        self.running[share].terminate()
        self.running[share].join(5)
        self.running[share] = self._start(share)
        return seed

    def dies_again(self, seed: int) -> bool:
        """Return whether a process of its own dies or hangs of a seed, too."""
        place = self._context.Value("q", seed)
        return self._dies(work, 0, 1, Budget(seed, seed), self._context.Queue(), place)

    def torch_dies(self, seed: int) -> bool:
        """Return whether torch alone dies or hangs of a seed."""
        return self._dies(generate, seed)

    def _dies(self, function: Any, *arguments: Any) -> bool:
        process = self._context.Process(target=function, args=arguments, daemon=True)
        process.start()
        process.join(_SILENCE_S)
        code = process.exitcode
        process.terminate()
        return code != 0

    def end(self) -> None:
        """End all processes."""
        for process in self.running.values():
            process.terminate()
            process.join(5)


def collect(crew: Crew, progress: Progress) -> None:
    """Receive until every process is done; one that dies or is silent is a failure of its seed."""
    met: Counter[tuple[str, str]] = Counter()
    received_at = time.monotonic()
    while crew.running:
        try:
            kind, first, second, third = crew.results.get(timeout=1.0)
        except queue.Empty:
            silent = time.monotonic() - received_at > _SILENCE_S
            dead = [k for k, process in crew.running.items() if silent or not process.is_alive()]
            for share in dead:
                seed = crew.replace(share)
                received_at = time.monotonic()
                if not crew.dies_again(seed):
                    # Torch has written out of bounds in an earlier graph.
                    progress.explain("died-once")
                elif crew.torch_dies(seed):
                    progress.explain("torch-died")
                else:
                    progress.fail(seed, "the process died or hung on this seed")
            continue
        received_at = time.monotonic()
        if kind == "count":
            progress.count(first, second)
            for name, times in third.items():
                progress.explain(name, times)
        elif kind == "fail":
            met[second] += 1
            if met[second] == 1:
                progress.fail(first, third)
            else:
                progress.failed.append(first)
        else:
            crew.running.pop(first)
    for (what, op), times in met.most_common():
        print(f"fuzz-engine: {times} differences: {what} of {op}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
