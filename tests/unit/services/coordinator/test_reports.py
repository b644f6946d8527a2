import pytest

from gradmesh.protos.coordinator.v1 import status_pb2
from gradmesh.protos.errors import JobDone
from gradmesh.services.coordinator.reports import MAX_JOBS, FinishedJobs, Reports


def test_the_newest_report_counts_until_its_trainer_is_gone():
    board = Reports()
    board.report("t-0", status_pb2.Progress(step=1))
    board.report("t-0", status_pb2.Progress(step=2))

    newest = board.progress("t-0")
    board.drop("t-0")
    board.drop("t-0")

    assert newest.step == 2
    assert board.progress("t-0") is None


def test_the_newest_result_counts():
    board = Reports()
    board.finish(1, {"auc": 0.5})
    board.finish(2, {"auc": 0.7})

    assert (board.result, board.result_generation) == ({"auc": 0.7}, 2)


def test_unfinished_and_nameless_jobs_continue():
    jobs = FinishedJobs()
    jobs.finish("a", {})

    jobs.check("")
    jobs.check("b")


def test_finished_jobs_are_bounded_and_the_oldest_are_dropped():
    jobs = FinishedJobs()
    for i in range(MAX_JOBS + 1):
        jobs.finish(f"job-{i}", {"i": float(i)})

    jobs = FinishedJobs(jobs.dump())

    jobs.check("job-0")
    with pytest.raises(JobDone):
        jobs.check("job-1")
    assert jobs.newest == {"i": float(MAX_JOBS)}
