from gradmesh.sdk.transport.deadline import Deadline


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_runs_out_and_never_below_zero() -> None:
    clock = Clock()
    deadline = Deadline.after(5, clock)

    assert deadline.remaining_s() == 5
    assert not deadline.passed

    clock.now += 7
    assert deadline.remaining_s() == 0
    assert deadline.passed


def test_a_deadline_of_now_has_passed() -> None:
    deadline = Deadline.after(0, Clock())

    assert deadline.passed
    assert deadline.remaining_s() == 0
