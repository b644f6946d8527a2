"""Gradients as users give them, in the type of a table's rows."""

import numpy as np
import pytest

from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.table.gradients import BadGradients, fit_grads


def test_gradients_take_the_type_of_the_rows():
    given = np.ones((2, 3), np.float32)

    assert fit_grads(given, (2, 3), "t", np.dtype(np.float32)) is given
    assert fit_grads([[1, 2]], (1, 2), "t", np.dtype(np.float16)).dtype == np.float16


@pytest.mark.parametrize("bad", [np.ones((2, 2)), np.ones((2, 3), np.bool_), [["a"] * 3] * 2])
def test_gradients_that_do_not_fit_are_refused(bad):
    with pytest.raises(InvalidRequest, match="table 't': gradients"):
        fit_grads(bad, (2, 3), "t", np.dtype(np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_each_rule_handles_nan(bad, dtype):
    grads = np.array([[1, bad, 9]], dtype)

    with pytest.raises(InvalidRequest, match="NaN or infinite"):
        BadGradients.reject().clean(grads, "t")
    assert BadGradients.allow().clean(grads, "t") is grads
    clipped = BadGradients.clip(2.0).clean(grads, "t")
    assert clipped.dtype == dtype
    assert np.abs(clipped).max() <= 2
