import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradmesh.trainer.errors import BackendMissing, CollectiveTimeout
from gradmesh.trainer.process_group import FileStore, connect, tcp


def meet(store, **options):
    def join(rank):
        return connect(store, generation=1, rank=rank, world_size=2, timeout_s=20, **options)

    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(join, range(2), timeout=120))
    names = {group.backend for group in groups}
    for group in groups:
        group.close()
    return names


def test_one_rank_is_local(tmp_path):
    group = connect(FileStore(tmp_path), generation=1, rank=0, world_size=1, timeout_s=1)

    assert group.backend == "local"


def test_ranks_of_one_host_share_memory(tmp_path):
    assert meet(FileStore(tmp_path)) == {"shm"}


def test_ranks_of_different_hosts_take_sockets(tmp_path, monkeypatch):
    place = threading.local()

    def host_of_thread():
        place.name = getattr(place, "name", None) or f"host of {threading.get_ident()}"
        return place.name

    monkeypatch.setattr("gradmesh.trainer.process_group.backend.host_identity", host_of_thread)

    assert meet(FileStore(tmp_path)) == {"tcp"}


def test_backend_may_be_chosen(tmp_path):
    assert meet(FileStore(tmp_path), backend="tcp", endpoint=tcp.Endpoint()) == {"tcp"}


@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_a_group_without_a_deadline_waits(tmp_path, backend):
    def reduce(rank):
        store = FileStore(tmp_path)
        with connect(
            store, generation=1, rank=rank, world_size=2, timeout_s=math.inf, backend=backend
        ) as group:
            if rank:
                time.sleep(0.2)  # so that rank 0 waits
            array = np.ones(4, np.float32)
            group.all_reduce(array).wait(timeout_s=math.inf)
            return array.tolist()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(reduce, range(2), timeout=120)) == [[2.0] * 4] * 2


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan])
def test_a_timeout_is_a_number_above_zero(tmp_path, timeout_s):
    with pytest.raises(ValueError, match="timeout_s must be a number of seconds above 0"):
        connect(FileStore(tmp_path), generation=1, rank=0, world_size=1, timeout_s=timeout_s)


def test_local_has_one_rank(tmp_path):
    with pytest.raises(ValueError, match="one rank"):
        connect(
            FileStore(tmp_path), generation=1, rank=0, world_size=2, timeout_s=1, backend="local"
        )


def test_missing_rank_is_named(tmp_path):
    with pytest.raises(CollectiveTimeout) as caught:
        connect(FileStore(tmp_path), generation=1, rank=0, world_size=2, timeout_s=0.1)

    assert caught.value.ranks == (1,)


@pytest.mark.parametrize(
    ("backend", "what"),
    [
        ("mpi", "mpi4py"),
        ("nccl", "cupy"),
    ],
)
def test_missing_packages_are_named(tmp_path, monkeypatch, backend, what):
    import builtins

    real = builtins.__import__

    def refuse(name, *arguments, **options):
        if name.startswith(("mpi4py", "cupy")):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)

    with pytest.raises(BackendMissing, match=what):
        connect(
            FileStore(tmp_path), generation=1, rank=0, world_size=2, timeout_s=1, backend=backend
        )
