"""Gradients of a message on the wire."""

import numpy as np
import pytest

from gradmesh.engine.autograd import RowGrad
from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.errors import InvalidFrame
from gradmesh.sdk.autograd.codec import own_arrays, pack_gradients, unpack_gradients

DENSE = pb.Gradient(kind=pb.GRADIENT_KIND_DENSE)
ROWS = pb.Gradient(kind=pb.GRADIENT_KIND_ROWS, num_rows=4)


def test_dense_sparse_and_none_come_back_as_they_were():
    dense = np.arange(6, dtype=np.float64).reshape(2, 3)
    rows = RowGrad(np.array([3, 1]), np.ones((2, 2), np.float32), 4, coalesced=True)

    described, arrays = pack_gradients([dense, None, rows])
    back = unpack_gradients(described, own_arrays(arrays, borrowed=True))

    np.testing.assert_array_equal(back[0], dense)
    assert back[0] is not dense
    assert back[1] is None
    assert (back[2].ids.tolist(), back[2].num_rows, back[2].coalesced) == ([3, 1], 4, True)


def test_memory_that_is_ours_is_not_copied():
    dense = np.ones(3, np.float32)

    assert unpack_gradients([DENSE], own_arrays([dense], borrowed=False))[0] is dense


@pytest.mark.parametrize(
    ("described", "arrays"),
    [
        ([DENSE], []),
        ([ROWS], [np.array([1])]),
        ([ROWS], [np.array([1.0]), np.ones((1, 2))]),
        ([ROWS], [np.array([4]), np.ones((1, 2))]),
        ([ROWS], [np.array([-1]), np.ones((1, 2))]),
        ([ROWS], [np.array([1, 2]), np.ones((1, 2))]),
    ],
)
def test_inconsistent_gradients_are_refused(described, arrays):
    with pytest.raises(InvalidFrame):
        unpack_gradients(described, iter(arrays))
