"""Bags in the normalised form of the layers."""

import numpy as np

from gradmesh.sdk.nn.remote_embedding_bag import read_bags

# Of a: [1, 2], [3]; of b: [], [4, 5, 6].
IDS = np.array([1, 2, 3, 4, 5, 6])
OFFSETS = np.array([0, 2, 3, 3, 6])


def test_bags_of_a_sample_are_contiguous():
    bags = read_bags(IDS, OFFSETS, ["a", "b"])

    order, starts = bags.by_sample(np.arange(2))

    assert IDS[order].tolist() == [1, 2, 3, 4, 5, 6]
    assert starts.tolist() == [0, 2, 2, 3, 6]
    assert bags.table_starts.tolist() == [0, 3, 6]
    order, starts = bags.by_sample(np.array([1]))
    assert (IDS[order].tolist(), starts.tolist()) == ([4, 5, 6], [0, 0, 3])


def test_padding_is_left_out_of_its_own_table():
    bags = read_bags(IDS, OFFSETS, ["a", "b"]).without([2, 5])

    assert bags.ids.tolist() == [1, 3, 4, 6]
    assert bags.lengths.tolist() == [[1, 1], [0, 2]]
    assert bags.starts.tolist() == [[0, 1], [2, 2]]
    assert bags.kept.tolist() == [0, 2, 3, 5]
    assert bags.table_starts.tolist() == [0, 2, 4]


def test_bags_without_padding_are_unchanged():
    bags = read_bags(IDS, OFFSETS, ["a", "b"])

    assert bags.without([None, None]) is bags


def test_an_empty_batch_has_no_bags():
    bags = read_bags([np.empty((0, 3)), np.empty((0, 2))], None, ["a", "b"])

    order, starts = bags.by_sample(np.arange(2))

    assert (order.tolist(), starts.tolist()) == ([], [0])
    assert bags.lengths.shape == (2, 0)
    assert bags.table_starts.tolist() == [0, 0, 0]
