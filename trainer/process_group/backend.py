"""Choose a backend and connect to the other ranks."""

from typing import Literal, TypeAlias

from gradmesh.sdk.transport.deadline import check_timeout
from gradmesh.sdk.transport.lane.handshake import host_identity
from gradmesh.trainer.process_group.local import LocalProcessGroup
from gradmesh.trainer.process_group.mpi import MpiProcessGroup
from gradmesh.trainer.process_group.nccl import NcclProcessGroup
from gradmesh.trainer.process_group.peer.rendezvous import Endpoint, share_hosts
from gradmesh.trainer.process_group.process_group import ProcessGroup
from gradmesh.trainer.process_group.shm import ShmProcessGroup
from gradmesh.trainer.process_group.store import PrefixStore, Store
from gradmesh.trainer.process_group.tcp import TcpProcessGroup

Backend: TypeAlias = Literal["auto", "local", "shm", "tcp", "mpi", "nccl"]
"""Transport between the ranks of a process group; auto is shm on one host, tcp between hosts."""

# torch's default for gloo.
_TIMEOUT_S = 1800.0


def connect(
    store: Store,
    *,
    generation: int,
    rank: int,
    world_size: int,
    backend: Backend = "auto",
    endpoint: Endpoint | None = None,
    timeout_s: float | None = None,
) -> ProcessGroup:
    """Connect to the other ranks of the generation and return the group.

    Args:
        store: The generation's store, shared by its ranks.
        generation: The generation of the group.
        rank: This process's rank.
        world_size: Number of ranks.
        backend: The transport; the same on all ranks.
        endpoint: Where to listen for ranks of other hosts; loopback if None.
        timeout_s: Longest time to connect, and for one collective later; half an hour by default.

    Raises:
        ValueError: The backend does not support this number of ranks, or the timeout is not a
            number above 0.
        CollectiveTimeout: A rank did not connect in time.
        PeerLost: A rank cannot be reached.
        HandshakeRefused: A rank is in another generation.
        BackendMissing: A dependency of the backend is not installed.
    """
    timeout_s = check_timeout(timeout_s, _TIMEOUT_S)
    if backend == "local" and world_size > 1:
        raise ValueError(f"the local backend has one rank, not {world_size}; use auto")
    if backend == "local" or (backend == "auto" and world_size == 1):
        return LocalProcessGroup()
    if backend == "auto":
        choice = PrefixStore(store, "choice")
        hosts = share_hosts(choice, rank, world_size, host_identity(), timeout_s)
        backend = "shm" if len(set(hosts)) == 1 and hosts[0] else "tcp"
    if backend == "shm":
        return ShmProcessGroup.connect(
            store, generation=generation, rank=rank, world_size=world_size, timeout_s=timeout_s
        )
    if backend == "mpi":
        return MpiProcessGroup.connect(store, rank=rank, world_size=world_size, timeout_s=timeout_s)
    if backend == "nccl":
        return NcclProcessGroup.connect(
            store, rank=rank, world_size=world_size, timeout_s=timeout_s
        )
    return TcpProcessGroup.connect(
        store,
        generation=generation,
        rank=rank,
        world_size=world_size,
        timeout_s=timeout_s,
        endpoint=endpoint,
    )
