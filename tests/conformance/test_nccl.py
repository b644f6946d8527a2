"""The nccl backend alone: order on streams, the watchdog, a new communicator afterwards.

Without a GPU it runs over the stand-in library; tests marked gpu need two devices and NCCL.
"""

import time

import numpy as np
import pytest

from gradmesh.trainer.errors import CollectiveTimeout, PeerLost
from gradmesh.trainer.process_group import FileStore, NcclProcessGroup


def test_collective_runs_between_two_points_of_the_callers_stream(meet):
    ranks = meet("nccl", 2)
    array = [np.ones(3), np.ones(3)]

    ranks.run(lambda group: group.all_reduce(array[group.rank]).wait())

    for group in ranks.groups:
        assert group._stream.order[-3:] == ["wait for caller", "event", "make caller wait"]


def test_error_that_nccl_reports_ends_what_is_pending(meet):
    ranks = meet("nccl", 2)
    library = ranks.nccl.LIBRARY
    pending = ranks.groups[0].barrier()
    library.gm_set_async_error(ranks.groups[0]._communicator.comm, 6)

    with pytest.raises(PeerLost, match="NCCL"):
        pending.wait(120)
    with pytest.raises(PeerLost):
        ranks.groups[0].barrier()


def test_error_in_progress_is_none(meet):
    ranks = meet("nccl", 2)
    ranks.nccl.LIBRARY.gm_set_async_error(ranks.groups[0]._communicator.comm, 7)

    ranks.run(lambda group: group.barrier().wait())


def test_ranks_continue_in_a_new_communicator_after_a_timeout(meet):
    lost = meet("nccl", 3, 0.5)
    pending = [group.all_reduce(np.ones(5)) for group in lost.groups[:2]]
    for work in pending:
        with pytest.raises(CollectiveTimeout) as caught:
            work.wait(120)
        assert caught.value.ranks == (2,)
    for group in lost.groups:
        group.close()

    fresh = meet("nccl", 2)
    arrays = [np.full(5, rank + 1.0) for rank in range(2)]
    fresh.run(lambda group: group.all_reduce(arrays[group.rank]).wait())

    assert [array.tolist() for array in arrays] == [[3.0] * 5] * 2


def test_missing_rank_is_named_before_nccl_waits_for_it(meet, tmp_path):
    stream = meet("nccl", 1).nccl.HostStream()
    started = time.monotonic()

    with pytest.raises(CollectiveTimeout) as caught:
        NcclProcessGroup.connect(
            FileStore(tmp_path), rank=0, world_size=2, timeout_s=0.3, stream=stream
        )

    assert caught.value.ranks == (1,)
    assert time.monotonic() - started < 10


def test_numpy_arrays_are_refused(meet):
    group = meet("nccl", 1).groups[0].group

    with pytest.raises(TypeError, match="cupy"):
        group.all_reduce(np.zeros(3))


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["sum", "avg", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_all_reduce_on_devices(gpu_ranks, op, dtype):
    if op == "avg" and dtype.startswith("int"):
        pytest.skip("no such case: avg is for floats")
    cupy = pytest.importorskip("cupy")

    def reduce(group):
        group._stream.use_device()
        array = group.empty(1000, dtype)
        array[...] = group.rank + 1
        group.all_reduce(array, op).wait()
        return cupy.asnumpy(array)

    results = gpu_ranks.run(reduce)

    expected = {"sum": 3, "avg": 1.5, "max": 2, "min": 1, "prod": 2}[op]
    for result in results:
        np.testing.assert_array_equal(result, np.full(1000, expected, dtype))


@pytest.mark.gpu
def test_non_contiguous_arrays_on_devices(gpu_ranks):
    cupy = pytest.importorskip("cupy")

    def reduce(group):
        group._stream.use_device()
        array = cupy.zeros((4, 6), "float32")
        array[::2, 1::2] = group.rank + 1
        group.all_reduce(array[::2, 1::2]).wait()
        return cupy.asnumpy(array)

    for result in gpu_ranks.run(reduce):
        assert result[::2, 1::2].tolist() == [[3.0] * 3] * 2
        assert not result[1::2].any()


@pytest.mark.gpu
def test_silent_rank_on_devices_is_aborted(gpu_ranks):
    work = gpu_ranks.groups[0].barrier()

    with pytest.raises(CollectiveTimeout) as caught:
        work.wait(120)
    assert caught.value.ranks == (1,)
