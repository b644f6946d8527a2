import ml_dtypes
import numpy as np
import pytest

from gradmesh.engine.kernels import all_finite


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_found(dtype, bad):
    array = np.linspace(-3, 3, 35).reshape(5, 7).astype(dtype)
    assert all_finite(array)
    assert all_finite(array.T)

    for place in (0, 17, 34):
        spoiled = array.copy()
        spoiled.reshape(-1)[place] = bad
        assert not all_finite(spoiled)
        assert not all_finite(spoiled.T)


def test_nothing_is_finite():
    assert all_finite(np.empty((0, 4), np.float32))
