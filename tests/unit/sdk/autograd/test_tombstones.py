from gradmesh.protos import limits
from gradmesh.sdk.autograd.tombstones import ContextTombstones, WorkerLru


def test_the_least_recently_used_worker_is_dropped():
    newest = WorkerLru(list, max_workers=2)
    newest.touch("a").append(1)
    newest.touch("b").append(2)
    newest.touch("a").append(3)

    newest.touch("c")

    assert newest.get("a") == [1, 3]
    assert newest.get("b") is None
    assert len(newest) == 2


def test_workers_share_the_numbers_and_each_keeps_some(monkeypatch):
    monkeypatch.setattr(limits, "DEDUPE_NUMBERS", 1000)
    dead = ContextTombstones()
    for worker in range(10):
        for counter in range(1, 500):
            dead.add(f"w-{worker}", 1, counter)

    kept = dead.dump()

    assert len(kept) == 10
    # A worker that came when there were few may have kept more: a harmonic sum.
    assert sum(len(counters) for *_, counters in kept) < 3000
    assert all(dead.has("w-9", 1, counter) for counter in range(1, 500))
    assert not dead.has("w-9", 1, 500)
    assert WorkerLru(list).share(4096) == 1000
