from gradmesh.sdk.autograd.tombstones import WorkerLru


def test_the_least_recently_used_worker_is_dropped():
    newest = WorkerLru(list, max_workers=2)
    newest.touch("a").append(1)
    newest.touch("b").append(2)
    newest.touch("a").append(3)

    newest.touch("c")

    assert newest.get("a") == [1, 3]
    assert newest.get("b") is None
    assert len(newest) == 2
