import threading

import numpy as np
import pytest

from gradmesh.trainer.process_group.reduction import reduce_in_order
from gradmesh.trainer.process_group.shm import kernel


def address(array):
    return array.__array_interface__["data"][0]


DTYPES = sorted(kernel.COMPILED, key=str)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("sum", dtype) for dtype in DTYPES] + [("avg", d) for d in DTYPES if d.kind == "f"],
    ids=str,
)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_compiled_sums_equal_numpy_bit_for_bit(dtype, op, size):
    rng = np.random.default_rng(0)
    parts = [(rng.standard_normal(5003) * 1000).astype(dtype) for _ in range(size)]
    expected = parts[0].copy()
    reduce_in_order([expected, *(part.copy() for part in parts[1:])], op, out=expected)

    at = np.array([address(part) for part in parts], np.int64)
    run = kernel.mean if op == "avg" else kernel.total
    run(at, at, 0, 5003, np.empty(kernel.BLOCK, dtype))

    assert [part.tobytes() for part in parts] == [expected.tobytes()] * size


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_small_arrays_go_through_slots_with_the_same_bits(dtype, size):
    rng = np.random.default_rng(0)
    parts = [(rng.standard_normal(77) * 1000).astype(dtype) for _ in range(size)]
    slots = [np.zeros(77, dtype) for _ in range(size)]
    words = np.zeros(3, np.int64)
    at = address(words)
    for part, slot in zip(parts, slots, strict=True):
        kernel.begin_small(part, address(slot), at + 16, 5, at, size)
    assert words.tolist() == [size, 0, 5]

    for op in ("sum", "avg") if dtype.kind == "f" else ("sum",):
        expected, out = parts[0].copy(), np.empty(77, dtype)
        reduce_in_order([expected, *(part.copy() for part in parts[1:])], op, out=expected)
        sources = np.array([address(slot) for slot in slots], np.int64)
        kernel.end_small(sources, out, op == "avg", at + 16, 6, at, size)

        assert out.tobytes() == expected.tobytes()
    assert [slot.tobytes() for slot in slots] == [part.tobytes() for part in parts]
    assert words[2] == 6


def test_headers_agree_if_they_name_the_same_collective():
    headers = np.zeros((3, kernel.HEADER_BYTES), np.uint8)
    headers[:, kernel.HEADER_TEXT :] = 65
    headers[1, : kernel.HEADER_TEXT] = 7  # places may differ
    at = np.array([address(header) for header in headers], np.int64)

    assert kernel.agree(at, 1)
    headers[2, -1] = 66
    assert not kernel.agree(at, 0)
    assert not kernel.agree(at, 2)


def test_only_the_slice_is_touched():
    part = np.ones(100, np.float32)
    at = np.array([address(part)] * 2, np.int64)

    kernel.total(at, at[:1], 10, 20, np.empty(kernel.BLOCK, np.float32))

    assert part[10:20].tolist() == [2.0] * 10
    assert part.sum() == 110


def test_completing_the_count_wakes_the_others():
    counter = np.zeros(3, np.int64)
    limit = np.array([20, 0], np.int64)
    at = address(counter)
    done = []
    waiter = threading.Thread(
        target=lambda: done.append(kernel.wait(at, 2, 0, address(limit))), daemon=True
    )
    waiter.start()

    kernel.arrive(at + 16, 7, at, 2)
    kernel.arrive(at + 16, 8, at, 2)
    waiter.join(10)

    assert done in ([True], [False])  # False: it polled between the two, and would poll again
    assert counter.tolist() == [2, 0, 8]


def test_wait_ends_by_its_limit():
    counter = np.zeros(2, np.int64)
    limit = np.array([0, 1_000_000], np.int64)

    assert not kernel.wait(address(counter), 1, 1, address(limit))
