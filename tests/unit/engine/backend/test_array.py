import numpy as np
import pytest

from gradmesh.engine.backend import (
    CPU,
    Device,
    DeviceError,
    ShapeError,
    as_device,
    to_numpy,
    view_of,
)
from gradmesh.engine.backend.cuda import stand_in
from tests.cupy_stand_in import StandInModule


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


def test_names_are_read() -> None:
    assert as_device(None) == as_device("cpu") == CPU
    assert as_device("cuda") == Device("cuda", 0)
    assert as_device("cuda:3") == Device("cuda", 3)
    assert str(as_device("cuda:3")) == "cuda:3"
    assert as_device("cuda").type == "cuda"


@pytest.mark.parametrize("bad", ["gpu", "cuda:x", "cuda:-1"])
def test_other_names_are_refused(bad: str) -> None:
    with pytest.raises(DeviceError, match="no such device"):
        as_device(bad)
