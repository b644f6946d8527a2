"""Counts, findings with the command that repeats them, and the summary of a run."""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from tests.fuzz.batch import Batch, save

REPLAY = "FUZZ_TARGETS={target} FUZZ_SEEDS={seed} make fuzz"
# What differs between findings of one kind.
_VALUES = re.compile(r"'[^']*'|`[^`]*`|[0-9a-f]{8,}|-?\d+")
_EVERY_S = 15.0
_MOST_SHOWN = 4000


class FuzzReport:
    """Collects the batches of all targets; thread safe.

    Args:
        folder: Where the bytes of findings are saved.
        stream: Where to print.
    """

    def __init__(self, folder: Path, stream: TextIO | None = None) -> None:
        self._folder = folder
        self._stream = sys.stdout if stream is None else stream
        self._lock = threading.Lock()  # guards all below
        self._totals: dict[str, Batch] = {}
        self._spent: dict[str, float] = {}
        self._kinds: dict[str, int] = {}
        self._begun = self._printed = time.monotonic()

    def add(self, target: str, seed: int, batch: Batch, seconds: float) -> None:
        """Record a batch; print its findings, of each kind the first."""
        with self._lock:
            self._totals.setdefault(target, Batch()).add(batch)
            self._spent[target] = self._spent.get(target, 0.0) + seconds
            fresh = [finding for finding in batch.findings if self._is_new(target, finding.what)]
            for path, finding in zip(
                save(self._folder, target, seed, fresh) if fresh else (), fresh, strict=True
            ):
                self._line(f"finding in {target}, seed {seed}: {finding.what[:_MOST_SHOWN]}")
                size = len(finding.data)
                self._line(f"{size} bytes in {path}" if size else "known by its seed only")
                self._line(f"repeat with: {REPLAY.format(target=target, seed=seed)}")
            if time.monotonic() - self._printed >= _EVERY_S:
                self._printed = time.monotonic()
                self._line(self._progress())

    def _is_new(self, target: str, what: str) -> bool:
        kind = f"{target}: " + _VALUES.sub("#", what)[:160]
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        return self._kinds[kind] == 1

    def findings(self, target: str) -> int:
        """Return how many findings a target has."""
        with self._lock:
            return len(self._totals.get(target, Batch()).findings)

    def summarize(self) -> int:
        """Print what was tried; return the exit code: 1 if there are findings."""
        with self._lock:
            for target, total in self._totals.items():
                answers = ", ".join(f"{name} {n}" for name, n in total.answers.most_common(8))
                self._line(
                    f"{target}: {total.frames} frames in {self._spent[target]:.0f} s, "
                    f"{len(total.findings)} findings; {answers}"
                )
            for kind, count in sorted(self._kinds.items()):
                self._line(f"{count} times {kind.splitlines()[0]}")
            self._line(self._progress())
            return 1 if self._kinds else 0

    def _progress(self) -> str:
        frames = sum(total.frames for total in self._totals.values())
        spent = time.monotonic() - self._begun
        return f"{frames} frames in {spent:.0f} s, {sum(self._kinds.values())} findings"

    def _line(self, text: str) -> None:
        print(f"fuzz: {text}", file=self._stream, flush=True)
