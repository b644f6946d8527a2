import numpy as np
import pytest

from gradmesh.protos.sharding import BUCKETS, ShardMap, buckets_of, even_buckets


def shard_map(shards: int) -> ShardMap:
    names = [f"ps-{i}" for i in range(shards)]
    return ShardMap(1, names, names, np.asarray(even_buckets(shards), np.int32))


def test_buckets_never_change() -> None:
    """The hash is part of the contract: a change would route ids to wrong servers."""
    ids = np.array([0, 1, 2, 3, 10, 1000, 2**20, 2**40 - 1, 2**63 - 1])

    assert buckets_of(ids).tolist() == [0, 1385, 3517, 485, 117, 3097, 2940, 4038, 1446]


def test_buckets_equal_splitmix64_in_plain_integers() -> None:
    mask = 2**64 - 1
    ids = np.random.default_rng(0).integers(0, 2**63, 200)
    want = []
    for x in ids.tolist():
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        want.append((x ^ x >> 31) >> 52)

    assert buckets_of(ids).tolist() == want


def test_finding_buckets_leaves_the_ids_alone() -> None:
    ids = np.arange(5)

    buckets_of(ids)

    assert ids.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_ids_of_any_shape_have_buckets(shape: tuple[int, ...]) -> None:
    ids = np.full(shape, 7)

    got = buckets_of(ids)

    assert got.shape == shape
    assert np.all(got == buckets_of(np.array([7]))[0])


@pytest.mark.parametrize("shards", range(1, 8))
def test_every_id_has_one_shard_and_the_load_is_even(shards: int) -> None:
    got = shard_map(shards).shards_of(np.arange(100_000))

    counts = np.bincount(got, minlength=shards)
    assert got.dtype == np.int32
    assert len(counts) == shards
    assert counts.min() > 0.95 * 100_000 / shards
    assert counts.max() < 1.05 * 100_000 / shards


@pytest.mark.parametrize("shards", [1, 3, 7, 4096])
def test_buckets_are_distributed_evenly(shards: int) -> None:
    counts = np.bincount(even_buckets(shards), minlength=shards)

    assert counts.sum() == BUCKETS
    assert counts.max() - counts.min() <= 1


def test_strided_ids_do_not_gather_on_one_shard() -> None:
    for stride in (2, 64, 4096, 2**20):
        counts = np.bincount(shard_map(4).shards_of(np.arange(10_000) * stride), minlength=4)

        assert counts.min() > 2_200
