"""Arrays in memory that their sender can change."""

import numpy as np
import pytest

from gradmesh.protos.dtype import wire_dtype
from gradmesh.protos.errors import InvalidFrame
from gradmesh.protos.lane import entry, read_arrays, read_shared_arrays, read_table

KINDS = [np.bool_, np.int8, np.int32, np.int64, np.uint8, np.uint64, np.float16, np.float32]


@pytest.mark.parametrize("dtype", KINDS)
def test_whole_numbers_are_copied_out_of_shared_memory_and_floats_are_not(dtype: type) -> None:
    memory = np.ones(8, dtype)
    table = read_table(entry(wire_dtype(memory.dtype), (8,), 0))

    (array,) = read_shared_arrays(table, memory, memory.nbytes)

    memory[:] = 0
    is_float = np.issubdtype(dtype, np.floating)
    assert (array == (0 if is_float else 1)).all()
    assert not array.flags.writeable or is_float


def test_a_bool_is_checked_as_it_is_used() -> None:
    memory = np.array([0, 2], np.uint8)
    table = read_table(entry(wire_dtype(np.dtype(np.bool_)), (2,), 0))

    with pytest.raises(InvalidFrame):
        read_shared_arrays(table, memory, 2)


def test_arrays_beyond_the_body_are_refused() -> None:
    table = read_table(entry(wire_dtype(np.dtype(np.int64)), (8,), 0))

    with pytest.raises(InvalidFrame):
        read_shared_arrays(table, bytes(64), 63)


@pytest.mark.parametrize("shape", [(0, 2**47, 2**47), (2**48, 0, 2), (0, 2**49)])
def test_empty_shapes_that_numpy_cannot_have_are_refused(shape: tuple[int, ...]) -> None:
    table = entry(wire_dtype(np.dtype(np.int64)), shape, 0)

    with pytest.raises(InvalidFrame):
        read_arrays(read_table(table), bytes(64), 0, 64)
