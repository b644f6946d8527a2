import numpy as np
import pytest

from gradmesh.engine.backend import ShapeError, to_numpy, view_of
from gradmesh.engine.backend.cuda import stand_in
from gradmesh.engine.backend.stand_in import StandInModule


def test_a_view_is_the_same_memory() -> None:
    array = np.zeros((2, 3, 4))

    view_of(array, (6, 4))[...] = 1
    view_of(array[:, ::2], (2, 2, 2, 2))[...] = 2
    view_of(array[:0], (4, 0))[...] = 3

    assert array.tolist() == [[[2] * 4, [1] * 4, [2] * 4]] * 2


@pytest.mark.parametrize("on_device", [False, True])
def test_a_shape_that_needs_a_copy_is_refused(on_device: bool) -> None:
    with stand_in(StandInModule()):
        array = np.zeros((2, 3)) if not on_device else StandInModule.asarray(np.zeros((2, 3)))

        with pytest.raises(ShapeError, match="make it contiguous"):
            view_of(array.T, -1)

        view_of(array, (3, 2))[0] = 1
        assert to_numpy(array)[0].tolist() == [1, 1, 0]
