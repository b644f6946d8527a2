from gradmesh.protos.coordinator.v1 import status_pb2
from gradmesh.services.coordinator.board import Board


def test_the_newest_report_counts_until_its_trainer_is_gone():
    board = Board()
    board.report("t-0", status_pb2.Progress(step=1))
    board.report("t-0", status_pb2.Progress(step=2))

    newest = board.progress("t-0")
    board.forget("t-0")
    board.forget("t-0")

    assert newest.step == 2
    assert board.progress("t-0") is None


def test_the_newest_result_counts():
    board = Board()
    board.finish(1, {"auc": 0.5})
    board.finish(2, {"auc": 0.7})

    assert (board.result, board.result_generation) == ({"auc": 0.7}, 2)
