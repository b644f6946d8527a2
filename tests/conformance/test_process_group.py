"""What every process group MUST do, on every backend."""

import threading

import ml_dtypes
import numpy as np
import pytest

from gradmesh.trainer.errors import (
    GroupAborted,
    GroupClosed,
    PeerLost,
)

FLOATS = ["float16", "float32", "float64", ml_dtypes.bfloat16]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
COUNTS = [0, 1, 2, 3, 7, 1000, 5003, 100_003]
# Every type, and every count of the smallest and the widest; all together are slow.
BROADCASTS = [
    pytest.param(
        dtype,
        count,
        marks=() if count == 5 or dtype in ("int8", "complex64") else pytest.mark.slow,
    )
    for dtype in [*FLOATS, *INTS, "bool", "complex64"]
    for count in [0, 5, 100_003]
]
OPS = {"sum": np.add, "avg": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def contribution(rank, count, dtype):
    rng = np.random.default_rng(rank)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 5, count).astype(dtype)
    return rng.standard_normal(count).astype(np.float32).astype(dtype)


def reduced(size, count, dtype, op, backend="tcp"):
    """Combine the contributions one after another in rank order."""
    return combined([contribution(rank, count, dtype) for rank in range(size)], op, backend)


def combined(parts, op, backend="tcp"):
    """Combine arrays in rank order; averages of two-byte floats in float32, rounded once."""
    dtype = parts[0].dtype
    if op == "avg" and dtype.itemsize == 2 and len(parts) > 1:
        if backend == "nccl":  # scales before it sums, in the arrays' own dtype
            scale = dtype.type(np.float32(1) / np.float32(len(parts)))
            return combined([part * scale for part in parts], "sum")
        return combined([part.astype(np.float32) for part in parts], "avg").astype(dtype)
    total = parts[0]
    for part in parts[1:]:
        total = OPS[op](total, part)
    return total / total.dtype.type(len(parts)) if op == "avg" else total


def test_rank_and_size_are_those_of_the_world(ranks):
    seen = [(group.rank, group.size) for group in ranks.groups]

    assert seen == [(rank, ranks.size) for rank in range(ranks.size)]


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, dtype) for op in OPS for dtype in [*FLOATS, *INTS] if op != "avg" or dtype in FLOATS],
    ids=lambda value: value if value in OPS else np.dtype(value).name,
)
def test_all_reduce_equals_rank_order_bit_for_bit(ranks, op, dtype):
    if ranks.backend == "nccl" and np.dtype(dtype) in (np.int16, np.uint16):
        pytest.skip("no such case: NCCL has no integers of 16 bits")
    arrays = [contribution(rank, 5003, dtype) for rank in range(ranks.size)]

    ranks.run(lambda group: group.all_reduce(arrays[group.rank], op).wait())

    expected = reduced(ranks.size, 5003, dtype, op, ranks.backend)
    assert [array.tobytes() for array in arrays] == [expected.tobytes()] * ranks.size


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize(
    "dtype", ["float16", ml_dtypes.bfloat16], ids=lambda dtype: np.dtype(dtype).name
)
def test_long_sums_of_two_bytes_are_rounded_once(ranks, op, dtype):
    """Large arrays are sent in pieces, by another algorithm than small ones."""
    count = 100_003
    arrays = [contribution(rank, count, dtype) for rank in range(ranks.size)]

    ranks.run(lambda group: group.all_reduce(arrays[group.rank], op).wait())

    expected = reduced(ranks.size, count, dtype, op, ranks.backend)
    assert [array.tobytes() for array in arrays] == [expected.tobytes()] * ranks.size


@pytest.mark.parametrize("count", [7, 50_000], ids=["small", "big"])
def test_an_average_of_float16_stays_in_its_range(ranks, count):
    value = np.resize(np.array([30_000, -65_504, 6e-8], np.float16), count)
    arrays = [value.copy() for _ in range(ranks.size)]

    ranks.run(lambda group: group.all_reduce(arrays[group.rank], "avg").wait())

    # NCCL scales in float16: some units in the last place, and nothing left of the smallest.
    near = 1e-3 * np.abs(value, dtype=np.float64) + 6e-8 if ranks.backend == "nccl" else 0
    for array in arrays:
        assert (np.abs(array.astype(np.float64) - value.astype(np.float64)) <= near).all()


@pytest.mark.parametrize("count", COUNTS)
def test_all_reduce_takes_any_count(ranks, count):
    arrays = [contribution(rank, count, np.float32) for rank in range(ranks.size)]

    ranks.run(lambda group: group.all_reduce(arrays[group.rank]).wait())

    expected = reduced(ranks.size, count, np.float32, "sum")
    assert [array.tobytes() for array in arrays] == [expected.tobytes()] * ranks.size


@pytest.mark.parametrize("count", [300_001, 2_500_007])
def test_all_reduce_of_big_arrays_in_a_row(ranks, count):
    """Arrays are sent in several pieces, and a fast rank is a piece or a collective ahead."""
    first = [contribution(rank, count, np.float32) for rank in range(ranks.size)]
    second = [contribution(rank, count, np.float32) for rank in range(ranks.size)]

    def job(group):
        works = [group.all_reduce(first[group.rank]), group.all_reduce(second[group.rank], "avg")]
        for work in works:
            work.wait()

    ranks.run(job)

    for arrays, op in ((first, "sum"), (second, "avg")):
        expected = reduced(ranks.size, count, np.float32, op).tobytes()
        assert all(array.tobytes() == expected for array in arrays), op


def test_all_reduce_handles_non_contiguous_arrays_in_place(ranks):
    backing = [np.arange(24.0).reshape(4, 6) * (rank + 1) for rank in range(ranks.size)]

    ranks.run(lambda group: group.all_reduce(backing[group.rank][::2, 1::2]).wait())

    factor = sum(range(1, ranks.size + 1))
    for rank, array in enumerate(backing):
        expected = np.arange(24.0).reshape(4, 6) * (rank + 1)
        expected[::2, 1::2] = np.arange(24.0).reshape(4, 6)[::2, 1::2] * factor
        np.testing.assert_array_equal(array, expected)


def test_all_reduce_takes_a_scalar_array(ranks):
    arrays = [np.array(float(rank + 1)) for rank in range(ranks.size)]

    ranks.run(lambda group: group.all_reduce(arrays[group.rank]).wait())

    assert [float(array) for array in arrays] == [sum(range(1, ranks.size + 1))] * ranks.size


def test_all_reduce_max_takes_bool(ranks):
    arrays = [np.array([rank == 0, False]) for rank in range(ranks.size)]

    ranks.run(lambda group: group.all_reduce(arrays[group.rank], "max").wait())

    assert [array.tolist() for array in arrays] == [[True, False]] * ranks.size


@pytest.mark.parametrize(("dtype", "count"), BROADCASTS, ids=str)
def test_broadcast_copies_the_root(ranks, count, dtype):
    root = ranks.size - 1
    arrays = [contribution(rank, count, np.float32).astype(dtype) for rank in range(ranks.size)]
    expected = arrays[root].tobytes()

    ranks.run(lambda group: group.broadcast(arrays[group.rank], root).wait())

    assert [array.tobytes() for array in arrays] == [expected] * ranks.size


def test_broadcast_handles_non_contiguous_arrays(ranks):
    arrays = [np.full((3, 4), rank).T for rank in range(ranks.size)]

    ranks.run(lambda group: group.broadcast(arrays[group.rank], 0).wait())

    assert all((array == 0).all() for array in arrays)


@pytest.mark.parametrize("count", [0, 1, 5, 100_003])
def test_all_gather_collects_every_rank(ranks, count):
    outputs = [np.empty((ranks.size, count), np.int64) for _ in range(ranks.size)]

    ranks.run(
        lambda group: group.all_gather(
            outputs[group.rank], np.full(count, group.rank, np.int64)
        ).wait()
    )

    expected = np.repeat(np.arange(ranks.size), count).reshape(ranks.size, count)
    for output in outputs:
        np.testing.assert_array_equal(output, expected)


def test_all_gather_takes_uneven_arrays(ranks):
    def gather(group):
        outputs = [np.empty(rank * 3, np.float32) for rank in range(group.size)]
        mine = np.full(group.rank * 3, group.rank, np.float32)
        group.all_gather(outputs, mine).wait()
        return outputs

    results = ranks.run(gather)

    for outputs in results:
        assert [o.tolist() for o in outputs] == [[r] * (r * 3) for r in range(ranks.size)]


def test_all_gather_fills_non_contiguous_outputs(ranks):
    backing = [np.zeros((4, 2 * ranks.size)) for _ in range(ranks.size)]

    def gather(group):
        columns = [backing[group.rank][:, 2 * rank] for rank in range(group.size)]
        group.all_gather(columns, np.full(4, group.rank + 1.0)).wait()

    ranks.run(gather)

    for array in backing:
        np.testing.assert_array_equal(array[0, ::2], np.arange(ranks.size) + 1.0)
        assert not array[:, 1::2].any()


def test_barrier_ends_when_all_ranks_have_arrived(ranks):
    come = []

    def arrive(group):
        come.append(group.rank)
        group.barrier().wait()
        return len(come)

    assert ranks.run(arrive) == [ranks.size] * ranks.size


def test_overlapping_works_end_in_order(ranks):
    def overlap(group):
        arrays = [np.full(50_000, group.rank + i, np.float64) for i in range(8)]
        works = [group.all_reduce(array) for array in arrays]
        works[-1].wait()
        done = [work.is_done() for work in works]
        for work in works:
            work.wait()
        return done, [array[0] for array in arrays]

    results = ranks.run(overlap)

    ranked = sum(range(ranks.size))
    expected = [float(ranked + ranks.size * i) for i in range(8)]
    assert results == [([True] * 8, expected)] * ranks.size


def test_works_may_be_waited_for_in_any_order_and_twice(ranks):
    def waits(group):
        first, second = group.barrier(), group.barrier()
        second.wait(120)
        first.wait(120)
        first.wait(120)
        return first.exception()

    assert ranks.run(waits) == [None] * ranks.size


def test_calls_from_several_threads_do_not_mix(meet):
    ranks = meet("tcp", 2)
    turn = threading.Barrier(2)

    def hammer(group):
        array = np.full(10, 1.0)
        for _ in range(50):
            group.all_reduce(array, "avg").wait()
        turn.wait(120)
        return array.tolist()

    assert ranks.run(hammer) == [[1.0] * 10] * 2


@pytest.mark.parametrize(
    ("array", "op", "error"),
    [
        (np.zeros(2), "median", ValueError),
        (np.zeros(2, np.int32), "avg", TypeError),
        (np.zeros(2, bool), "sum", TypeError),
        (np.zeros(2, np.complex64), "sum", TypeError),
        (np.zeros(2, object), "sum", TypeError),
        (np.zeros(2, ">f4"), "sum", TypeError),
        (np.broadcast_to(np.float32(0), 3), "sum", ValueError),
        ([1.0], "sum", TypeError),
    ],
)
def test_bad_arguments_raise_at_the_call_and_change_nothing(ranks, array, op, error):
    if ranks.backend == "nccl" and isinstance(array, np.ndarray) and not array.flags.writeable:
        pytest.skip("no such case: cupy has no read-only arrays")
    if ranks.backend == "mpi" and getattr(array, "dtype", None) in (
        np.dtype("f4"),
        np.dtype(">f4"),
    ):
        pytest.skip("no such case: on its way to the rank the array becomes writable and native")
    for group in ranks.groups:
        with pytest.raises(error):
            group.all_reduce(array, op)

    ranks.run(lambda group: group.barrier().wait())


def test_bad_root_and_outputs_are_refused(ranks):
    for group in ranks.groups:
        with pytest.raises(ValueError, match="root"):
            group.broadcast(np.zeros(2), ranks.size)
        with pytest.raises(ValueError, match="root"):
            group.broadcast(np.zeros(2), -1)
        with pytest.raises(ValueError, match="outputs"):
            group.all_gather([], np.zeros(2))
        with pytest.raises(TypeError, match="float32"):
            group.all_gather(np.zeros((ranks.size, 2), np.float32), np.zeros(2))
        with pytest.raises(ValueError, match="shape"):
            group.all_gather(np.zeros((ranks.size, 3)), np.zeros(2))

    ranks.run(lambda group: group.barrier().wait())


def test_use_after_close_is_refused_and_close_may_be_repeated(ranks):
    for group in ranks.groups:
        group.close()
        group.close()

    for group in ranks.groups:
        with pytest.raises(GroupClosed):
            group.barrier()
        with pytest.raises(GroupClosed):
            group.all_reduce(np.zeros(1))


def test_use_after_abort_is_refused(ranks):
    for group in ranks.groups:
        group.abort()

    for group in ranks.groups:
        with pytest.raises((GroupAborted, PeerLost)):
            group.barrier().wait()


def test_context_manager_closes(ranks):
    for group in ranks.groups:
        with group:
            pass

    for group in ranks.groups:
        with pytest.raises(GroupClosed):
            group.barrier()


def test_bytes_cross_the_network_once_for_each_host(meet):
    ranks = meet("tcp+shm", 4)

    ranks.run(lambda group: group.all_reduce(np.zeros(1_000_000, np.float32), "avg").wait())

    moved = [group.bytes_moved for group in ranks.groups]
    assert moved[1] == moved[3] == 0
    # The sum of the first host is sent, the result is received.
    assert all(8_000_000 <= moved[leader] < 8_010_000 for leader in (0, 2))


def test_bytes_moved_counts_both_ways(several_ranks):
    if several_ranks.is_chained:
        pytest.skip("no such case: only one rank of a host has bytes to move")
    several_ranks.run(lambda group: group.all_reduce(np.zeros(1_000_000, np.float32), "avg").wait())

    # Ring-optimal volume: 2 (n-1)/n of the array each way.
    least = 2 * 2 * (several_ranks.size - 1) * 4_000_000 // several_ranks.size
    for group in several_ranks.groups:
        assert least <= group.bytes_moved < least + 10_000
