import pytest

from gradmesh.trainer.job.meter import Meter


@pytest.fixture
def clock():
    return iter([100.0, 105.0, 106.0, 108.0]).__next__


def test_rate_leaves_the_first_step_out(clock):
    meter = Meter(10, clock=clock)

    for steps in (1, 2, 3):
        meter.count(steps)

    assert meter.samples_per_s() == pytest.approx(2 * 10 / 3.0)
    assert meter.seconds() == 8.0


def test_rate_is_zero_before_the_second_step(clock):
    meter = Meter(10, clock=clock)

    assert meter.samples_per_s() == 0.0
    meter.count(1)
    assert meter.samples_per_s() == 0.0
