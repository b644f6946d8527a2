"""Sparse gradients: rows are gathered, and summed in rank order."""

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.autograd import RowGrad, Tensor, run_backward
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import EmbeddingBag, Linear, Module
from gradmesh.trainer.ddp import DistributedDataParallel, all_reduce_rows
from gradmesh.trainer.errors import CollectiveMismatch, MissingGradient


class Bags(Module):
    def __init__(self, sparse=True):
        super().__init__()
        generator = Generator(5)
        self.table = EmbeddingBag(20, 3, sparse=sparse, generator=generator)
        self.head = Linear(3, 1, generator=generator)

    def forward(self, ids, offsets):
        return self.head(self.table(ids, offsets))


def batch(rank, step):
    rng = np.random.default_rng([rank, step])
    return Tensor(rng.integers(0, 20, 10)), Tensor(np.array([0, 4]))


@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_sparse_gradients(world, as_view, size):
    def job(group):
        ddp = DistributedDataParallel(Bags(), process_group=group, gradient_as_bucket_view=as_view)
        optimizer = optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            (ddp(*batch(group.rank, step)) ** 2).sum().backward()
            assert isinstance(ddp.module.table.weight.grad, RowGrad)
            optimizer.step()
        return [p.data for p in ddp.parameters()]

    results = world(size).run(job)
    alone = Bags(sparse=False)
    for step in range(4):
        alone.zero_grad()
        for rank in range(size):
            (alone(*batch(rank, step)) ** 2).sum().backward()
        for parameter in alone.parameters():
            parameter.grad.data /= np.float32(size)
        optim.SGD(alone.parameters(), lr=0.1).step()
    for found in results:
        for mine, wanted in zip(found, alone.parameters(), strict=True):
            assert np.allclose(mine, wanted.data, rtol=1e-5, atol=1e-6)
    for a, b in zip(results[0], results[1], strict=True):
        assert (a == b).all()


def test_a_rank_without_rows_gets_those_of_the_others(world):
    class Maybe(Bags):
        def forward(self, ids, offsets, uses):
            rows = self.table(ids, offsets) if uses else Tensor(np.ones((2, 3), np.float32))
            return self.head(rows)

    def job(group):
        ddp = DistributedDataParallel(Maybe(), process_group=group, find_unused_parameters=True)
        ddp(*batch(1, 0), uses=group.rank == 1).sum().backward()
        return ddp.module.table.weight.grad

    first, second = world(2).run(job)
    assert (first.to_dense() == second.to_dense()).all()

    def strict(group):
        ddp = DistributedDataParallel(Maybe(), process_group=group)
        with pytest.raises(MissingGradient, match=r"rank 0: table\.weight"):
            ddp(*batch(1, 0), uses=group.rank == 1).sum().backward()

    world(2).run(strict)


def test_sparse_gradients_inside_a_map(world):
    def job(group):
        ddp = DistributedDataParallel(Bags(), process_group=group)
        ddp(*batch(group.rank, 0)).sum().backward()
        into = {}
        run_backward([ddp(*batch(group.rank, 0)).sum()], into=into)
        assert len(into) == 3
        local = ddp.module.table.weight.grad.to_dense()
        assert (into[ddp.module.table.weight].to_dense() == local).all()

    world(2).run(job)


def test_announced_ids_save_the_gathering(world):
    def job(group, announces):
        ddp = DistributedDataParallel(Bags(), process_group=group)
        if announces:
            ids = np.concatenate([batch(rank, 0)[0].data for rank in range(group.size)])
            ddp.set_sparse_ids({"table.weight": ids})
        moved = group.bytes_moved
        ddp(*batch(group.rank, 0)).sum().backward()
        return ddp.module.table.weight.grad.to_dense(), group.bytes_moved - moved

    one = world(3)
    for (plain, _), (known, _) in zip(
        one.run(lambda g: job(g, False)), one.run(lambda g: job(g, True)), strict=True
    ):
        assert (plain == known).all()


def test_ids_that_were_not_announced_are_named(world):
    ddp = DistributedDataParallel(Bags(), process_group=world(1).groups[0])
    with pytest.raises(KeyError, match=r"table\.weight"):
        ddp.set_sparse_ids({})
    ddp.set_sparse_ids({"table.weight": [1]})
    with pytest.raises(CollectiveMismatch, match="not announce"):
        ddp(*batch(0, 0)).sum().backward()


def test_all_reduce_rows_by_hand(world):
    def job(group):
        ids = np.array([2, 2, group.rank])
        rows = np.full((3, 2), 1 + group.rank, np.float32)
        return all_reduce_rows(group, RowGrad(ids, rows, 5), 2).wait()

    for total in world(2).run(job):
        assert total.coalesced
        assert total.to_dense()[:, 0].tolist() == [0.5, 1, 3, 0, 0]
