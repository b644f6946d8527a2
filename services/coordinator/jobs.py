"""Which jobs are done. Pure.

A trainer that was lost with the last step behind it comes back to nobody. It must hear that there
is nothing left to do: alone it would wait for the others, or begin their job again.
"""

import json
from typing import final

from gradmesh.protos.errors import JobDone
from gradmesh.protos.limits import check_name

MAX_JOBS = 256
"""Finished jobs that are remembered; older ones have no trainers left."""


@final
class FinishedJobs:
    """The names of the newest finished jobs, and what came out of them.

    Args:
        memory: What `remember` returned before a restart of the coordinator; empty at first.
    """

    def __init__(self, memory: bytes = b"") -> None:
        self._results: dict[str, dict[str, float]] = json.loads(memory) if memory else {}

    def remember(self) -> bytes:
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
