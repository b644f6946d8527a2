import numpy as np
import pytest

from gradmesh.trainer.process_group.reduction import reduce_in_order, slices


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_slices_cover_everything_evenly(count, size):
    cuts = slices(count, size)

    lengths = [cut.stop - cut.start for cut in cuts]
    assert np.concatenate([np.arange(count)[cut] for cut in cuts]).tolist() == list(range(count))
    assert len(cuts) == size
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("own", [0, 1, 2, 3])
def test_reduction_is_in_rank_order_for_any_output(own):
    values = [np.float32(1e8), np.float32(1.0), np.float32(-1e8), np.float32(1.0)]
    contributions = [np.full(3, value) for value in values]

    reduce_in_order(contributions, "sum", out=contributions[own])

    expected = ((values[0] + values[1]) + values[2]) + values[3]
    np.testing.assert_array_equal(contributions[own], np.full(3, expected))


def test_average_divides_the_sum():
    contributions = [np.array([1.0]), np.array([2.0]), np.array([4.0])]
    out = np.empty(1)

    reduce_in_order(contributions, "avg", out=out)

    assert out[0] == 7.0 / 3.0


def test_single_contribution_is_copied():
    out = np.zeros(2)

    reduce_in_order([np.array([3.0, 4.0])], "max", out=out)

    assert out.tolist() == [3.0, 4.0]
