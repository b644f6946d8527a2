"""What trainers report: progress, checkpoints, results, and which jobs are done. Pure."""

import json
from typing import final

from gradmesh.protos.coordinator.v1 import status_pb2
from gradmesh.protos.errors import JobDone
from gradmesh.protos.limits import check_name


@final
class Reports:
    """The newest reports.

    Args:
        result: What came out of the newest run before a restart of the coordinator, if known.
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
        """Keep the newest checkpoint, or why there is none."""
        self.requests = max(self.requests, checkpoint.request)
        self._checkpoint, self._checkpoint_at = checkpoint, now

    def checkpoint(self, now: float) -> status_pb2.Checkpoint | None:
        """Return the newest checkpoint that was reported."""
        if self._checkpoint is None:
            return None
        found = status_pb2.Checkpoint()
        found.CopyFrom(self._checkpoint)
        found.age_s = now - self._checkpoint_at
        return found

    def report(self, name: str, progress: status_pb2.Progress) -> None:
        """Keep a trainer's newest progress."""
        self._progress[name] = progress

    def progress(self, name: str) -> status_pb2.Progress | None:
        """Return a trainer's newest progress."""
        return self._progress.get(name)

    def forget(self, name: str) -> None:
        """Drop what a trainer that is gone reported."""
        self._progress.pop(name, None)

    def finish(self, generation: int, figures: dict[str, float]) -> None:
        """Keep the outcome of a run."""
        self.result = figures
        self.result_generation = generation


MAX_JOBS = 256
"""Finished jobs that are remembered; older ones have no trainers left."""


@final
class FinishedJobs:
    """The names of the newest finished jobs, and what came out of them.

    Args:
        memory: What `dump` returned before a restart of the coordinator; empty at first.
    """

    def __init__(self, memory: bytes = b"") -> None:
        self._results: dict[str, dict[str, float]] = json.loads(memory) if memory else {}

    def dump(self) -> bytes:
        """Return what a restarted coordinator needs."""
        return json.dumps(self._results).encode() if self._results else b""

    @property
    def newest(self) -> dict[str, float]:
        """Figures of the job that was finished last; empty before."""
        return next(reversed(self._results.values()), {})

    def finish(self, job: str, figures: dict[str, float]) -> None:
        """Take notice that a job is done.

        Raises:
            InvalidRequest: Its name is none.
        """
        check_name("job", job)
        self._results.pop(job, None)
        self._results[job] = figures
        while len(self._results) > MAX_JOBS:
            del self._results[next(iter(self._results))]

    def check(self, job: str) -> None:
        """Return if there is something left to train.

        Raises:
            JobDone: The job has its result.
        """
        if job in self._results:
            raise JobDone(f"job {job!r} is done; give a new one another job.id", job=job)
