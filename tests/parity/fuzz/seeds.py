"""Seeds, time budget, progress and summary, shared by the fuzzers of this folder.

One integer seed makes one case. `FUZZ_SEEDS=A..B` (or one number) names the seeds; without it the
seeds begin at today's date and run for `FUZZ_SECONDS`. Both are printed, so a run can be repeated.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TextIO

# Leaves a million seeds to each day.
_SEEDS_A_DAY = 1_000_000


@dataclasses.dataclass(frozen=True)
class Budget:
    """Which seeds to run: from `first` to `last`, or until the time is up, whichever is sooner."""

    first: int
    last: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        until = f"for {self.seconds:g} s" if self.last is None else f"to {self.last}"
        return f"seeds from {self.first} {until}"


def budget(environment: Mapping[str, str] | None = None, seconds: float = 60.0) -> Budget:
    """Read the budget from FUZZ_SEEDS and FUZZ_SECONDS.

    Args:
        environment: Where to read, the process's environment by default.
        seconds: How long to run where neither variable says.

    Raises:
        ValueError: If a variable cannot be read; names it and shows the form.
    """
    given = os.environ if environment is None else environment
    text, limit = given.get("FUZZ_SEEDS", ""), given.get("FUZZ_SECONDS", "")
    try:
        allowed = float(limit) if limit else None
    except ValueError:
        raise ValueError(f"FUZZ_SECONDS is {limit!r}; give a number, for instance 60") from None
    if not text:
        first = int(datetime.date.today().strftime("%Y%m%d")) * _SEEDS_A_DAY
        return Budget(first, None, seconds if allowed is None else allowed)
    head, dots, tail = text.partition("..")
    try:
        return Budget(int(head), int(tail) if dots else int(head), allowed)
    except ValueError:
        raise ValueError(f"FUZZ_SEEDS is {text!r}; give A..B or one number") from None


def seeds(budget: Budget, share: int = 0, shares: int = 1) -> Iterator[int]:
    """Yield the seeds of a budget; of several processes each takes its own share of them."""
    end = None if budget.seconds is None else time.monotonic() + budget.seconds
    seed = budget.first + share
    while budget.last is None or seed <= budget.last:
        if end is not None and time.monotonic() >= end:
            return
        yield seed
        seed += shares


class Progress:
    """Count cases and differences, print a line now and then, and sum up at the end.

    Args:
        name: The fuzzer's name.
        replay: The command that repeats one seed, with `{seed}` in it.
        stream: Where to print.
        every_s: Seconds between two progress lines.
    """

    def __init__(
        self, name: str, replay: str, stream: TextIO | None = None, every_s: float = 10.0
    ) -> None:
        self.name, self.replay = name, replay
        self.cases = 0
        self.covered: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self.failed: list[int] = []
        self._stream = sys.stdout if stream is None else stream
        self._every_s = every_s
        self._began = self._printed = time.monotonic()

    def count(self, cases: int = 1, covered: Mapping[str, int] | None = None) -> None:
        """Record cases that ran, and the names that they covered."""
        self.cases += cases
        if covered:
            self.covered.update(covered)
        now = time.monotonic()
        if now - self._printed >= self._every_s:
            self._printed = now
            self._line(f"{self._rate()}, {len(self.failed)} differences")

    def explain(self, name: str, times: int = 1) -> None:
        """Record differences that the table of known ones explains."""
        self.known[name] += times

    def fail(self, seed: int, report: str) -> None:
        """Record a difference and print it with the command that repeats it."""
        self.failed.append(seed)
        self._line(f"difference at seed {seed}; repeat with: {self.replay.format(seed=seed)}")
        print(report, file=self._stream, flush=True)

    def summarize(self, full: bool = True, tolerated: int = 0) -> int:
        """Print the summary and return the exit code: 1 if more seeds differ than are tolerated."""
        if full and self.covered:
            rows = ", ".join(f"{name} {n}" for name, n in sorted(self.covered.items()))
            self._line(f"covered {len(self.covered)}: {rows}")
        if full and self.known:
            rows = ", ".join(f"{name} {n}" for name, n in sorted(self.known.items()))
            self._line(f"known differences met: {rows}")
        self._line(f"{self._rate()}, {len(self.failed)} differences")
        for seed in self.failed[:20]:
            self._line(f"repeat with: {self.replay.format(seed=seed)}")
        return 1 if len(self.failed) > tolerated else 0

    def _rate(self) -> str:
        spent = max(time.monotonic() - self._began, 1e-9)
        return f"{self.cases} cases in {spent:.1f} s ({self.cases / spent:.0f}/s)"

    def _line(self, text: str) -> None:
        print(f"{self.name}: {text}", file=self._stream, flush=True)
