import fcntl
import gc
import os

import numpy as np
import pytest

from gradmesh.sdk.transport.lane.sealed import SEALS
from gradmesh.trainer.process_group.shm.memory import SharedHeap, SharedMemory


@pytest.fixture
def memory():
    fd = SharedMemory.create()
    try:
        return SharedMemory(fd)
    finally:
        os.close(fd)


def test_two_mappings_of_one_memory_see_the_same():
    fd = SharedMemory.create()
    near, far = SharedMemory(fd), SharedMemory(fd)
    os.close(fd)

    near.array(4096, 3, np.float32)[...] = [1, 2, 3]

    assert far.array(4096, 3, np.float32).tolist() == [1, 2, 3]


def test_memory_that_could_shrink_is_refused():
    fd = os.memfd_create("test")
    os.ftruncate(fd, 4096)

    with pytest.raises(ValueError, match="sealed"):
        SharedMemory(fd)
    os.close(fd)


@pytest.mark.parametrize("size", [4096, 1 << 45])
def test_memory_of_a_size_that_no_rank_has_is_refused(size):
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)

    with pytest.raises(ValueError, match=f"{size} bytes"):
        SharedMemory(fd)
    os.close(fd)


@pytest.mark.parametrize(
    ("offset", "nbytes", "has"),
    [(0, 0, True), (0, "all", True), (1, "all", False), (-8, 8, False), (8, -8, False)],
)
def test_ranges_that_another_rank_names_are_checked(memory, offset, nbytes, has):
    assert memory.has(offset, memory.size if nbytes == "all" else nbytes) is has


@pytest.mark.parametrize("offset", [2**63 - 1, -(2**63)])
def test_ranges_at_the_ends_of_the_numbers_are_checked(memory, offset):
    assert not memory.has(offset, 2**63 - 1)


def test_arrays_of_the_heap_are_found_and_others_are_not(memory):
    heap = SharedHeap(memory, 8192)
    first, second = heap.empty((3, 4), np.float32), heap.empty((), np.int64)

    assert memory.offset_of(first) == 8192
    assert memory.offset_of(second) == 8192 + 4096
    assert memory.offset_of(first[1:]) == 8192 + 16
    assert memory.offset_of(first[:, 1:]) == -1
    assert memory.offset_of(np.zeros(3)) == -1


def test_memory_is_released_with_the_last_view(memory):
    heap = SharedHeap(memory, 0)
    array = heap.empty(2000, np.float64)
    array[...] = 7
    view = array[10:20]
    del array
    gc.collect()

    assert memory.offset_of(heap.empty(1, np.int8)) == 16384
    assert view.tolist() == [7.0] * 10

    del view
    gc.collect()
    again = heap.empty(2000, np.float64)
    assert memory.offset_of(again) == 0
    assert not again.any()


def test_a_full_heap_falls_back_to_ordinary_memory(memory):
    heap = SharedHeap(memory, memory.size - 8192)

    arrays = [heap.empty(4096, np.uint8) for _ in range(3)]

    assert [memory.offset_of(array) >= 0 for array in arrays] == [True, True, False]
