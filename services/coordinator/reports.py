"""Reports of trainers: progress, checkpoints, results and finished jobs. Pure."""

import json
from typing import final

from gradmesh.protos.coordinator.v1 import status_pb2
from gradmesh.protos.errors import JobDone
from gradmesh.protos.limits import check_name


@final
class Reports:
    """The newest reports.

    Args:
        result: Metrics of the newest run before a restart of the coordinator, if known.
    """

    def __init__(self, result: dict[str, float] | None = None) -> None:
        self._progress: dict[str, status_pb2.Progress] = {}
        self.result = dict(result or {})
        self.result_generation = 0
        self.requests = 0
        self._checkpoint: status_pb2.Checkpoint | None = None
        self._checkpoint_at = 0.0

    def request_checkpoint(self) -> int:
        """Ask for a checkpoint; return the number of the request, the same until it is answered."""
        answered = 0 if self._checkpoint is None else self._checkpoint.request
        if self.requests <= answered:
            self.requests = answered + 1
        return self.requests

    def report_checkpoint(self, checkpoint: status_pb2.Checkpoint, now: float) -> None:
        """Store the newest checkpoint, or why it failed."""
        self.requests = max(self.requests, checkpoint.request)
        self._checkpoint, self._checkpoint_at = checkpoint, now

    def checkpoint(self, now: float) -> status_pb2.Checkpoint | None:
        """Return the newest checkpoint reported."""
        if self._checkpoint is None:
            return None
        found = status_pb2.Checkpoint()
        found.CopyFrom(self._checkpoint)
        found.age_s = now - self._checkpoint_at
        return found

    def report(self, name: str, progress: status_pb2.Progress) -> None:
        """Store a trainer's newest progress."""
        self._progress[name] = progress

    def progress(self, name: str) -> status_pb2.Progress | None:
        """Return a trainer's newest progress."""
        return self._progress.get(name)

    def drop(self, name: str) -> None:
        """Drop the progress of a lost trainer."""
        self._progress.pop(name, None)

    def finish(self, generation: int, figures: dict[str, float]) -> None:
        """Store the result of a run."""
        self.result = figures
        self.result_generation = generation


MAX_JOBS = 256
"""Number of finished jobs stored; older ones have no trainers left."""


@final
class FinishedJobs:
    """The names of the newest finished jobs, and their results.

    Args:
        stored: What `dump` returned before a restart of the coordinator; empty at first.
    """

    def __init__(self, stored: bytes = b"") -> None:
        self._results: dict[str, dict[str, float]] = json.loads(stored) if stored else {}

    def dump(self) -> bytes:
        """Return the state for the journal."""
        return json.dumps(self._results).encode() if self._results else b""

    @property
    def newest(self) -> dict[str, float]:
        """Result of the job that finished last; empty before."""
        return next(reversed(self._results.values()), {})

    def finish(self, job: str, figures: dict[str, float]) -> None:
        """Record that a job is done.

        Raises:
            InvalidRequest: Its name is not valid.
        """
        check_name("job", job)
        self._results.pop(job, None)
        self._results[job] = figures
        while len(self._results) > MAX_JOBS:
            del self._results[next(iter(self._results))]

    def check(self, job: str) -> None:
        """Raise if a job is done.

        Raises:
            JobDone: The job has its result.
        """
        if job in self._results:
            raise JobDone(f"job {job!r} is done; give a new one another job.id", job=job)
