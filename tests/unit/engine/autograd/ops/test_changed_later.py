"""Ids, indices and masks that the caller changes between forward and backward."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine.errors import InplaceError

F = gm.nn.functional


def leaf(*shape: int) -> Any:
    return gm.ones(*shape).requires_grad_()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("sparse", [False, True])
def test_ids_of_a_bag_are_refused(mode: str, sparse: bool) -> None:
    weight, ids = leaf(4, 2), gm.tensor([0, 1, 1])
    out = F.embedding_bag(ids, weight, gm.tensor([0, 2]), mode=mode, sparse=sparse)
    ids.fill_(10**9)

    with pytest.raises(InplaceError, match="Bag"):
        out.sum().backward()


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("scaled", [False, True])
def test_memory_of_ids_may_be_used_again(dtype: Any, scaled: bool) -> None:
    weight, ids = leaf(4, 2), np.array([[0, 1], [1, 3]], dtype)
    scales = leaf(2, 2) if scaled else None
    out = F.embedding_bag(ids, weight, mode="sum", per_sample_weights=scales)
    ids[...] = 10**9

    if dtype is np.int64:
        with pytest.raises(IndexError, match="outside 4 rows"):
            out.sum().backward()
    else:
        out.sum().backward()
        assert weight.grad[:, 0].tolist() == [1, 2, 0, 1]


def test_ids_of_a_bag_need_not_be_contiguous() -> None:
    weight = leaf(4, 2)
    F.embedding_bag(gm.tensor([[0, 3], [1, 1]]).T, weight, mode="sum").sum().backward()

    assert weight.grad[:, 0].tolist() == [1, 2, 0, 1]


READS: dict[str, Callable[[Any, Any], Any]] = {
    "index": lambda x, at: x[at],
    "later": lambda x, at: x[:, at],
    "select": lambda x, at: x.index_select(0, at),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_an_index_is_copied_for_backward(read: Callable[[Any, Any], Any]) -> None:
    x, y, index = leaf(4, 4), leaf(4, 4), gm.tensor([0, 2, 2])
    read(y, gm.tensor([0, 2, 2])).sum().backward()
    out = read(x, index)
    index.fill_(3)
    out.sum().backward()

    assert x.grad.tolist() == y.grad.tolist()


@pytest.mark.parametrize("select", [lambda x, m: x[m], lambda x, m: gm.ops.masked_select(x, m)])
def test_a_mask_is_copied_for_backward(select: Callable[[Any, Any], Any]) -> None:
    x, mask = leaf(200_000), gm.zeros(200_000) > 0
    mask[7] = True
    out = select(x, mask)
    mask.fill_(True)
    out.sum().backward()

    assert x.grad.sum().item() == x.grad[7].item() == 1


def test_an_index_of_an_assignment_is_copied_for_backward() -> None:
    x, value, index = leaf(3), leaf(1), gm.tensor([0])
    y = x * 1
    y[index] = value
    index += 1
    y.sum().backward()

    assert x.grad.tolist() == [0, 1, 1]


@pytest.mark.parametrize("keepdim", [False, True])
def test_indices_of_extremes_are_refused(keepdim: bool) -> None:
    x = leaf(2, 2)
    values, indices = x.max(0, keepdim=keepdim)
    indices.zero_()

    with pytest.raises(InplaceError, match="AtPositions"):
        values.sum().backward()


def test_sums_of_rows_count_their_places() -> None:
    from gradmesh.engine import kernels

    with pytest.raises(IndexError, match="2 indices for 1 rows"):
        kernels.scatter_add(np.zeros((3, 1)), np.array([0, 1]), np.ones((1, 1)))
