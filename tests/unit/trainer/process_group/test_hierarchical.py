import pytest

from gradmesh.trainer.process_group.hierarchical import ranks_by_host


@pytest.mark.parametrize(
    ("hosts", "blocks"),
    [
        (["a", "a", "b", "b"], [range(2), range(2, 4)]),
        (["a", "b", "b", "c"], [range(1), range(1, 3), range(3, 4)]),
        (["a", "a"], None),  # one host: shm
        (["a", "b", "c"], None),  # no two ranks share a host
        (["a", "b", "a", "b"], None),  # nothing may be summed early
        (["a", "a", "", ""], None),  # unknown
        (["a"], None),
        (["", ""], None),
    ],
)
def test_hosts_are_blocks_of_ranks(hosts, blocks):
    assert ranks_by_host(hosts) == blocks
