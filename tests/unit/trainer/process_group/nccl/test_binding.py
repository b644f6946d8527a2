import ml_dtypes
import numpy as np
import pytest

from gradmesh.trainer.process_group.nccl import binding


class Numbers:
    """The numbers of NCCL's ABI, as nccl.h has them."""

    NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)
    NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64 = range(6)
    NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = range(6, 10)


@pytest.mark.parametrize(
    ("dtype", "number"),
    [("f4", 7), ("f8", 8), ("f2", 6), (ml_dtypes.bfloat16, 9), ("i8", 4), ("bool", 1)],
)
def test_types_have_nccls_numbers(dtype, number):
    assert binding.dtype_constant(Numbers, np.dtype(dtype)) == number


@pytest.mark.parametrize("dtype", ["i2", "c8"])
def test_types_that_nccl_lacks_are_refused(dtype):
    with pytest.raises(TypeError, match="NCCL"):
        binding.dtype_constant(Numbers, np.dtype(dtype))


def test_ops_have_nccls_numbers():
    ops = ("sum", "prod", "max", "min", "avg")

    assert [binding.op_constant(Numbers, op) for op in ops] == [0, 1, 2, 3, 4]


class Communicator:
    def __init__(self, error):
        self.error = error

    def check_async_error(self):
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("error", "is_bad"),
    [(None, False), (KeyError(7), False), (KeyError(8), True), (RuntimeError("x"), True)],
)
def test_in_progress_is_not_an_error(error, is_bad):
    assert (binding.async_error(Communicator(error)) is not None) == is_bad
