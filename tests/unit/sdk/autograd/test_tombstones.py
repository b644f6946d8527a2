from gradmesh.sdk.autograd.tombstones import WorkerLru


def test_the_worker_silent_for_longest_is_forgotten():
    newest = WorkerLru(list, max_workers=2)
    newest.touch("a").append(1)
    newest.touch("b").append(2)
    newest.touch("a").append(3)

    newest.touch("c")

    assert newest.get("a") == [1, 3]
    assert newest.get("b") is None
    assert len(newest) == 2
