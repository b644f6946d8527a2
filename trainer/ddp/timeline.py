"""Timestamps of the phases of an iteration, by this host's clock, in nanoseconds."""

from __future__ import annotations

import time
from typing import final

_SAMPLED_AT_FIRST = 10
_RATE = 100

EVENTS = (
    "forward_compute_start",
    "forward_compute_end",
    "backward_compute_start",
    "backward_compute_end",
    "backward_comm_start",
    "backward_comm_end",
)


@final
class Timeline:
    """Record timestamps in sampled iterations: the first ten, then every `rate`-th."""

    def __init__(self) -> None:
        self._rate = _RATE
        self.is_sampled = True
        # Durations use the monotonic clock; this offset converts it to the time of day.
        self._epoch = time.time_ns() - time.perf_counter_ns()
        self._timestamps: dict[str, int] = {}
        self._sums: dict[str, int] = {}
        self._samples = 0

    def set_rate(self, rate: int) -> None:
        """Sample every `rate`-th iteration after the first ten."""
        if rate < 1:
            raise ValueError(f"a sample rate of {rate}; it is at least 1")
        self._rate = rate

    def begin(self, iteration: int) -> None:
        """Begin an iteration, counted from 0."""
        self.is_sampled = iteration < _SAMPLED_AT_FIRST or iteration % self._rate == 0
        if self.is_sampled:
            self._timestamps = {}

    def mark(self, event: str) -> None:
        """Record that an event happens now."""
        if self.is_sampled:
            self._timestamps[event] = time.perf_counter_ns()

    def is_complete(self) -> bool:
        """Return whether an iteration was recorded from forward to the end of its all-reduces."""
        return all(event in self._timestamps for event in EVENTS)

    def statistics(self) -> dict[str, int]:
        """Return durations and timestamps of the last sampled iteration."""
        if not self.is_complete():
            return {}
        at = self._timestamps
        hidden = min(at["backward_compute_end"], at["backward_comm_end"])
        found = {
            "forward_compute_time": at["forward_compute_end"] - at["forward_compute_start"],
            "backward_compute_time": at["backward_compute_end"] - at["backward_compute_start"],
            "backward_comm_time": at["backward_comm_end"] - at["backward_comm_start"],
            "backward_compute_comm_overlap_time": max(hidden - at["backward_comm_start"], 0),
            "backward_exposed_comm_time": max(
                at["backward_comm_end"] - at["backward_compute_end"], 0
            ),
        }
        timestamps = {f"{event}_time_host": self._epoch + at[event] for event in EVENTS}
        return {**found, **timestamps}

    def add(self) -> dict[str, int]:
        """Add the last sampled iteration to the averages; return its statistics and averages."""
        statistics = self.statistics()
        if not statistics:
            return {}
        self._samples += 1
        averages = {}
        for name, value in statistics.items():
            if not name.endswith("_host"):
                self._sums[name] = self._sums.get(name, 0) + value
                averages[f"avg_{name}"] = self._sums[name] // self._samples
        self._timestamps = {}
        return {**statistics, **averages}
