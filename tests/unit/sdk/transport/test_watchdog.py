"""The watchdog ends what is late, and nothing else."""

import time
from collections.abc import Iterator

import pytest

from gradmesh.sdk.transport.watchdog import Watchdog


class Ended:
    """What the watchdog has ended."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.watchdog: Watchdog[str] = Watchdog(self.names.append, "test-watch")

    def wait_for(self, name: str) -> None:
        until = time.monotonic() + 30
        while name not in self.names:
            assert time.monotonic() < until
            time.sleep(0.005)


@pytest.fixture
def ended() -> Iterator[Ended]:
    ended = Ended()
    yield ended
    ended.watchdog.close()


def test_what_is_late_is_ended_once(ended: Ended) -> None:
    ended.watchdog.begin("late", time.monotonic() + 0.01)

    ended.wait_for("late")


def test_what_has_ended_in_time_is_left_alone(ended: Ended) -> None:
    ended.watchdog.begin("prompt", time.monotonic() + 0.02)
    ended.watchdog.end("prompt")
    ended.watchdog.begin("later", time.monotonic() + 0.05)

    ended.wait_for("later")

    assert ended.names == ["later"]


def test_a_shorter_deadline_overtakes_a_longer_one(ended: Ended) -> None:
    ended.watchdog.begin("slow", time.monotonic() + 60)
    ended.watchdog.begin("quick", time.monotonic() + 0.01)

    ended.wait_for("quick")

    assert ended.names == ["quick"]
