"""The data position of ranks survives faults, checkpoints and another number of ranks."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest

from gradmesh.trainer.data import DataConfig, Source
from gradmesh.trainer.job.feed import DataPosition, Feed
from gradmesh.trainer.process_group import LocalProcessGroup, TcpProcessGroup

SAMPLES, BATCH = 240, 6


class Keys:
    """The values that ranks publish, in this process."""

    def __init__(self):
        self._values = {}

    def set(self, key, value):
        self._values[key] = value

    def get(self, key, timeout_s):
        for _ in count():
            if key in self._values:
                return self._values[key]


@pytest.fixture
def source(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(SAMPLES).reshape(-1, 1))
    np.save(tmp_path / "labels.npy", np.zeros(SAMPLES))
    config = DataConfig(
        format="npy", train=(tmp_path,), rows=(SAMPLES,), ids="number", block_kib=4, shuffle=True
    )
    return Source(config, 3)


def numbers(batches):
    return [int(i) for batch in batches for i in batch.ids[:, 0]]


def test_a_feed_resumes_from_its_stored_position(source):
    group = LocalProcessGroup()
    whole = Feed(source, group, BATCH, DataPosition(0, 0))
    expected = numbers([whole.take(step) for step in range(60)])

    first = Feed(source, group, BATCH, DataPosition(0, 0))
    seen = numbers([first.take(step) for step in range(7)])
    first.agree(7)
    seen += numbers([first.take(step) for step in range(7, 11)])
    # Kept after step 11, agreed on after step 7.
    second = Feed(source, group, BATCH, DataPosition(11, 11, first.arrays()))
    seen += numbers([second.take(step) for step in range(11, 60)])

    assert seen == expected
    assert sorted(expected[:SAMPLES]) == list(range(SAMPLES))


def test_batches_fetched_ahead_do_not_move_the_position(source):
    group = LocalProcessGroup()
    feed = Feed(source, group, BATCH, DataPosition(0, 0))
    feed.peek(5)
    feed.take(0)
    feed.take(1)
    feed.agree(2)

    following = Feed(source, group, BATCH, DataPosition(2, 2, feed.arrays())).take(2)

    assert numbers([following]) == numbers([feed.take(2)])


def test_every_sample_comes_once_with_another_number_of_ranks(source):
    def ranks(world, work):
        keys = Keys()

        def one(rank):
            if world == 1:
                return work(LocalProcessGroup())
            group = TcpProcessGroup.connect(
                keys, generation=1, rank=rank, world_size=world, timeout_s=20
            )
            try:
                return work(group)
            finally:
                group.close()

        with ThreadPoolExecutor(world) as pool:
            return list(pool.map(one, range(world), timeout=120))

    def begin(group):
        feed = Feed(source, group, BATCH, DataPosition(0, 0))
        seen = numbers([feed.take(step) for step in range(5)])
        feed.agree(5)
        return seen, feed.arrays()

    parts = ranks(2, begin)
    seen = [n for part, _ in parts for n in part]
    np.testing.assert_array_equal(parts[0][1]["data.position"], parts[1][1]["data.position"])
    left = (SAMPLES - len(seen)) // BATCH

    feed = Feed(source, LocalProcessGroup(), BATCH, DataPosition(5, 10, parts[0][1]))
    seen += numbers([feed.take(step) for step in range(5, 5 + left)])

    assert sorted(seen) == list(range(SAMPLES))
