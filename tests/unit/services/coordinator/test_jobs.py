"""Which jobs are done."""

import pytest

from gradmesh.protos.errors import JobDone
from gradmesh.services.coordinator.jobs import MAX_JOBS, FinishedJobs


def test_unfinished_and_nameless_jobs_go_on():
    jobs = FinishedJobs()
    jobs.finish("a", {})

    jobs.check("")
    jobs.check("b")


def test_memory_is_bounded_and_forgets_the_oldest():
    jobs = FinishedJobs()
    for i in range(MAX_JOBS + 1):
        jobs.finish(f"job-{i}", {"i": float(i)})

    jobs = FinishedJobs(jobs.remember())

    jobs.check("job-0")
    with pytest.raises(JobDone):
        jobs.check("job-1")
    assert jobs.newest == {"i": float(MAX_JOBS)}
