"""The default process group: set, unset and used."""

import numpy as np
import pytest

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.nn import BatchNorm1d, Linear, Sequential
from gradmesh.trainer.ddp import DistributedDataParallel, SyncBatchNorm
from gradmesh.trainer.errors import CollectiveTimeout, GroupClosed, NoDefaultGroup
from gradmesh.trainer.process_group import (
    FileStore,
    connect,
    default_group,
    destroy_process_group,
    init_process_group,
    is_initialized,
)


@pytest.fixture
def one(tmp_path):
    """Options to connect a world of one rank; no default group is left afterwards."""
    assert not is_initialized()
    yield {"store": FileStore(tmp_path), "rank": 0, "world_size": 1, "timeout_s": 1}
    if is_initialized():
        destroy_process_group()


def test_init_sets_it_and_destroy_closes_and_unsets_it(one):
    group = init_process_group(**one)
    assert is_initialized()
    assert default_group() is group

    destroy_process_group()

    assert not is_initialized()
    with pytest.raises(GroupClosed):
        group.barrier()
    assert init_process_group(**one) is default_group()


def test_connect_leaves_it_alone(one):
    connect(generation=1, **one)

    assert not is_initialized()


def test_a_second_default_group_is_refused(one):
    group = init_process_group(**one)

    with pytest.raises(ValueError, match="destroy_process_group"):
        init_process_group(**one)

    assert default_group() is group
    group.barrier().wait()


def test_ranks_that_do_not_meet_leave_none(one):
    with pytest.raises(CollectiveTimeout):
        init_process_group(one["store"], rank=0, world_size=2, timeout_s=0.1)

    assert not is_initialized()


@pytest.mark.parametrize(
    "use",
    [
        default_group,
        destroy_process_group,
        lambda: DistributedDataParallel(Linear(2, 1)),
        lambda: SyncBatchNorm(2)(Tensor(np.ones((3, 2), np.float32))),
    ],
    ids=["default_group", "destroy", "ddp", "sync_batch_norm"],
)
def test_without_one_the_error_names_the_call(one, use):
    with pytest.raises(NoDefaultGroup, match=r"gm\.process_group\.init_process_group"):
        use()


def test_wrappers_and_layers_take_it(one):
    group = init_process_group(**one)
    module = SyncBatchNorm.convert(Sequential(Linear(2, 3), BatchNorm1d(3)))

    ddp = DistributedDataParallel(module)
    ddp(Tensor(np.arange(8, dtype=np.float32).reshape(4, 2))).sum().backward()

    assert ddp.join_process_group is group
    assert module[0].weight.grad is not None
