"""What every process group MUST do when arrays move between ranks, and with sub-groups."""

import ml_dtypes
import numpy as np
import pytest

from gradmesh.trainer.errors import CollectiveMismatch, GroupClosed

COUNTS = [0, 1, 5, 100_003]
FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
# Every operation of every type, and every count of two of them; all together are slow.
REDUCTIONS = [
    pytest.param(
        op,
        dtype,
        count,
        marks=()
        if count == 5 or (op, dtype) in [("sum", np.float32), ("avg", ml_dtypes.bfloat16)]
        else pytest.mark.slow,
    )
    for op in ["sum", "avg", "max", "prod"]
    for dtype in FLOATS
    for count in COUNTS
]


def contribution(rank, to, count, dtype=np.float32):
    rng = np.random.default_rng([rank, to])
    return rng.standard_normal(count).astype(np.float32).astype(dtype)


def in_order(arrays, op, backend):
    """Combine arrays in rank order; averages of two-byte floats in float32, rounded once."""
    dtype = arrays[0].dtype
    if op == "avg" and dtype.itemsize == 2 and len(arrays) > 1:
        if backend == "nccl":  # scales before it sums, in the arrays' own dtype
            scale = dtype.type(np.float32(1) / np.float32(len(arrays)))
            return in_order([array * scale for array in arrays], "sum", backend)
        return in_order([a.astype(np.float32) for a in arrays], "avg", backend).astype(dtype)
    total = arrays[0]
    combine = {"sum": np.add, "avg": np.add, "max": np.maximum, "prod": np.multiply}[op]
    for array in arrays[1:]:
        total = combine(total, array)
    return total / total.dtype.type(len(arrays)) if op == "avg" else total


@pytest.mark.parametrize(("op", "dtype", "count"), REDUCTIONS)
def test_reduce_scatter_equals_rank_order_bit_for_bit(ranks, op, dtype, count):
    def reduce(group):
        inputs = [contribution(group.rank, to, count + to, dtype) for to in range(group.size)]
        before = [array.copy() for array in inputs]
        output = np.empty(count + group.rank, dtype)
        group.reduce_scatter(output, inputs, op).wait()
        assert all(a.tobytes() == b.tobytes() for a, b in zip(inputs, before, strict=True))
        return output

    results = ranks.run(reduce)

    for to, output in enumerate(results):
        given = [contribution(r, to, count + to, dtype) for r in range(ranks.size)]
        assert output.tobytes() == in_order(given, op, ranks.backend).tobytes()


def test_reduce_scatter_takes_one_array_of_rows(ranks):
    outputs = [np.zeros((2, 3)) for _ in range(ranks.size)]

    ranks.run(
        lambda group: group.reduce_scatter(
            outputs[group.rank], np.full((group.size, 2, 3), group.rank + 1.0)
        ).wait()
    )

    assert all((output == sum(range(1, ranks.size + 1))).all() for output in outputs)


@pytest.mark.parametrize("count", COUNTS)
def test_all_to_all_swaps_uneven_parts(ranks, count):
    def swap(group):
        inputs = [contribution(group.rank, to, count + to) for to in range(group.size)]
        outputs = [np.empty(count + group.rank, np.float32) for _ in range(group.size)]
        group.all_to_all(outputs, inputs).wait()
        return outputs

    results = ranks.run(swap)

    for to, outputs in enumerate(results):
        for source, output in enumerate(outputs):
            np.testing.assert_array_equal(output, contribution(source, to, count + to))


@pytest.mark.parametrize("count", COUNTS)
def test_gather_collects_on_the_root_only(ranks, count):
    root = ranks.size - 1

    def gather(group):
        outputs = None
        if group.rank == root:
            outputs = [np.empty(count + r, np.float32) for r in range(group.size)]
        mine = contribution(group.rank, root, count + group.rank)
        group.gather(outputs, mine, root).wait()
        return outputs

    results = ranks.run(gather)

    assert all(outputs is None for outputs in results[:root])
    for source, output in enumerate(results[root]):
        np.testing.assert_array_equal(output, contribution(source, root, count + source))


@pytest.mark.parametrize("count", COUNTS)
def test_scatter_gives_each_rank_its_share(ranks, count):
    root = ranks.size - 1

    def scatter(group):
        inputs = None
        if group.rank == root:
            inputs = [contribution(root, to, count + to) for to in range(group.size)]
        mine = np.empty(count + group.rank, np.float32)
        group.scatter(mine, inputs, root).wait()
        return mine

    results = ranks.run(scatter)

    for to, mine in enumerate(results):
        np.testing.assert_array_equal(mine, contribution(root, to, count + to))


@pytest.mark.parametrize("count", [*COUNTS, 3_000_000])
def test_messages_arrive_in_order(several_ranks, count):
    def talk(group):
        if group.rank == 0:
            for number in (1, 2):
                group.send(np.full(count, number), group.size - 1).wait()
        elif group.rank == group.size - 1:
            received = [np.zeros(count, int) for _ in range(2)]
            for work in [group.recv(array, 0) for array in received]:
                work.wait()
            return [set(array.tolist()) for array in received]
        return None

    results = several_ranks.run(talk)

    assert results[-1] == ([{1}, {2}] if count else [set(), set()])


@pytest.mark.parametrize("count", [5, 3_000_000])
def test_two_ranks_may_send_before_they_receive(several_ranks, count):
    if several_ranks.backend == "nccl":
        pytest.skip("no such case: NCCL's send ends when it is received: use all_to_all there")

    def talk(group):
        if group.rank > 1:
            return None
        peer = 1 - group.rank
        received = np.empty(count, np.float32)
        sent = group.send(np.full(count, group.rank + 1, np.float32), peer)
        got = group.recv(received, peer)
        sent.wait()
        got.wait()
        return float(received.min()), float(received.max())

    results = several_ranks.run(talk)

    assert results[:2] == [(2.0, 2.0), (1.0, 1.0)]


def test_messages_and_collectives_keep_their_order(several_ranks):
    def mix(group):
        seen = np.zeros(3)
        works = []
        if group.rank == 0:
            works.append(group.send(np.ones(3), 1))
        if group.rank == 1:
            works.append(group.recv(seen, 0))
        total = np.ones(70_000)
        works.append(group.all_reduce(total))
        works.append(group.barrier())
        for work in works:
            work.wait()
        return seen.tolist(), set(total.tolist())

    results = several_ranks.run(mix)

    assert results[1][0] == [1.0, 1.0, 1.0]
    assert [total for _, total in results] == [{float(several_ranks.size)}] * several_ranks.size


def test_message_of_another_size_raises_on_both(several_ranks):
    def talk(group):
        if group.rank == 0:
            group.send(np.zeros(3), 1).wait(120)
            group.barrier().wait(120)
        elif group.rank == 1:
            group.recv(np.zeros(4), 0).wait(120)

    errors = several_ranks.errors(talk)

    assert isinstance(errors[1], CollectiveMismatch)
    assert errors[0] is not None


def test_sends_to_itself_or_to_an_unknown_rank_are_refused(ranks):
    for group in ranks.groups:
        for peer in (group.rank, group.size, -1):
            with pytest.raises(ValueError, match="rank"):
                group.send(np.zeros(1), peer)
            with pytest.raises(ValueError, match="rank"):
                group.recv(np.zeros(1), peer)

    ranks.run(lambda group: group.barrier().wait())


def test_sub_groups_have_their_own_ranks_and_order(several_ranks):
    last = several_ranks.size - 1

    def split(group):
        pair = group.sub_group([last, 0])
        alone = group.sub_group([group.rank // group.size])
        if group.rank == 0:
            alone.barrier().wait()
        total = np.array([group.rank + 1.0])
        whole = group.all_reduce(total)
        seen = None
        if pair is not None:
            part = np.array([group.rank + 1.0])
            pair.all_reduce(part).wait()
            seen = (pair.rank, pair.size, float(part[0]))
        whole.wait()
        return seen, float(total[0])

    results = several_ranks.run(split)

    expected = [None] * several_ranks.size
    expected[0], expected[last] = (0, 2, last + 2.0), (1, 2, last + 2.0)
    assert [seen for seen, _ in results] == expected
    assert {total for _, total in results} == {sum(range(1, several_ranks.size + 1))}


def test_sub_groups_close_with_their_group(ranks):
    all_ranks = list(range(ranks.size))
    parts = ranks.run(lambda group: group.sub_group(all_ranks))

    for group in ranks.groups:
        group.close()

    for part in parts:
        with pytest.raises(GroupClosed):
            part.barrier()


@pytest.mark.parametrize("chosen", [[], [0, 0], [-1], [99]])
def test_bad_sub_groups_are_refused(ranks, chosen):
    for group in ranks.groups:
        with pytest.raises(ValueError, match="rank"):
            group.sub_group(chosen)

    ranks.run(lambda group: group.barrier().wait())


@pytest.mark.parametrize("shape", [0, 7, (3, 5), (), 300_000])
def test_memory_of_the_group_is_reduced_like_any_other(ranks, shape):
    def reduce(group):
        array = group.empty(shape, np.float32)
        array[...] = group.rank + 1
        group.all_reduce(array).wait()
        return array

    results = ranks.run(reduce)

    for array in results:
        assert array.shape == np.empty(shape).shape
        assert array.dtype == np.float32
        assert (array == sum(range(1, ranks.size + 1))).all()


def test_group_says_which_backend_it_is(ranks):
    assert {group.backend for group in ranks.groups} == {ranks.backend}


@pytest.mark.parametrize(
    "call",
    [
        lambda group: group.reduce_scatter(np.zeros(2), []),
        lambda group: group.reduce_scatter(np.zeros(2), np.zeros((group.size, 3))),
        lambda group: group.reduce_scatter(np.zeros(2), np.zeros((group.size, 2)), "median"),
        lambda group: group.all_to_all([], np.zeros((group.size, 2))),
        lambda group: group.all_to_all(np.zeros((group.size, 2)), np.zeros((group.size, 3))),
        lambda group: group.gather([], np.zeros(2), group.rank),
        lambda group: group.gather(None, np.zeros(2), group.size),
        lambda group: group.scatter(np.zeros(2), None, group.rank),
        lambda group: group.scatter(np.zeros(2), np.zeros((group.size, 3)), group.rank),
    ],
)
def test_bad_arguments_are_refused_at_the_call(ranks, call):
    for group in ranks.groups:
        with pytest.raises(ValueError, match=r"rank|shape|op|root"):
            call(group)

    ranks.run(lambda group: group.barrier().wait())
