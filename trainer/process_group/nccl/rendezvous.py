"""How NCCL's ranks meet: the unique id through the store, and a limit for what has none."""

import threading
import time
from collections.abc import Callable
from typing import Any

from gradmesh.trainer.errors import CollectiveTimeout
from gradmesh.trainer.process_group.nccl import binding
from gradmesh.trainer.process_group.nccl.stream import Stream
from gradmesh.trainer.process_group.store import Store


def make_communicator(
    store: Store, rank: int, world_size: int, timeout_s: float, stream: Stream
) -> Any:
    """Return NCCL's communicator of all ranks.

    Raises:
        CollectiveTimeout: A rank did not come in time.
    """
    nccl = binding.load()
    deadline = time.monotonic() + timeout_s
    if rank == 0:
        store.set("nccl/id", nccl.get_unique_id())
    # NCCL waits for ever in its own rendezvous: so all must be there before it begins.
    store.set(f"nccl/ready/{rank}", b"ready")
    unique_id = _get(store, "nccl/id", 0, deadline)
    for peer in range(world_size):
        _get(store, f"nccl/ready/{peer}", peer, deadline)

    def join() -> Any:
        stream.use_device()
        return nccl.NcclCommunicator(world_size, unique_id, rank)

    return in_time(join, "NCCL's rendezvous", deadline)


def _get(store: Store, key: str, rank: int, deadline: float) -> bytes:
    try:
        return store.get(key, max(0.0, deadline - time.monotonic()))
    except TimeoutError as error:
        raise CollectiveTimeout(
            f"rank {rank} did not publish {key!r} in time; see whether it still runs, then rejoin",
            ranks=[rank],
        ) from error


def in_time(act: Callable[[], Any], what: str, deadline: float) -> Any:
    """Do what cannot be interrupted on a thread that is left behind if it takes too long."""
    results: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(act())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="nccl-rendezvous", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    if not results:
        raise CollectiveTimeout(f"{what} did not end in time; restart this process and rejoin")
    return results[0]
