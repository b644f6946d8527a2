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


def test_a_deadline_after_zero_seconds_has_passed() -> None:
    deadline = Deadline.after(0, Clock())

    assert deadline.passed
    assert deadline.remaining_s() == 0


def test_a_server_answers_before_its_caller_gives_up() -> None:
    clock = Clock()
    short, long = Deadline.after(0.5, clock), Deadline.after(60, clock)

    assert short.to_answer().remaining_s() == 0.25
    assert long.to_answer().remaining_s() == 59
    clock.now += 100
    assert long.to_answer().passed
