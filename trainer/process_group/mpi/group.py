"""The process group over MPI, for ranks that mpiexec has started."""

import time
from collections.abc import Sequence
from typing import Any, final

from gradmesh.trainer.errors import BackendMissing, CollectiveTimeout
from gradmesh.trainer.process_group.argument import check_root
from gradmesh.trainer.process_group.collective import Collectives
from gradmesh.trainer.process_group.farewell import reason_of
from gradmesh.trainer.process_group.host_group import HostProcessGroup
from gradmesh.trainer.process_group.latch import Latch
from gradmesh.trainer.process_group.mpi.round import MpiRound
from gradmesh.trainer.process_group.process_group import ProcessGroup
from gradmesh.trainer.process_group.store import PrefixStore, Store


@final
class MpiProcessGroup(HostProcessGroup):
    """Ranks of one MPI world. Build it with `connect`; use it from any thread.

    MPI ends all processes of its world when one of them dies: there is nobody left to name it.

    Args:
        mpi: The module mpi4py.MPI.
        communicator: Of the group's ranks, in their order.
        timeout_s: Longest time one collective may take.
        store: Where sub-groups meet.
    """

    def __init__(self, mpi: Any, communicator: Any, timeout_s: float, store: Store) -> None:
        self._store = store
        latch = Latch()
        self._rounds = MpiRound(mpi, communicator, latch)
        rank, size = communicator.Get_rank(), communicator.Get_size()
        collectives = Collectives(rank, size, self._rounds)
        super().__init__(rank, size, timeout_s, latch, collectives)

    @classmethod
    def connect(
        cls, store: Store, *, rank: int, world_size: int, timeout_s: float
    ) -> "MpiProcessGroup":
        """Meet the other ranks of the generation and return the group.

        Args:
            store: The generation's store, shared by its ranks.
            rank: This process's rank; MPI may have given it another.
            world_size: How many ranks come.
            timeout_s: Longest time to meet, and for one collective later.

        Raises:
            BackendMissing: mpi4py or an MPI library is not installed.
            CollectiveTimeout: A rank did not come in time.
        """
        check_root(rank, world_size)
        mpi = _load()
        world = mpi.COMM_WORLD
        deadline = time.monotonic() + timeout_s
        store.set(f"mpi/rank/{rank}", str(world.Get_rank()).encode())
        places = [_place(store, peer, deadline) for peer in range(world_size)]
        # MPI waits without a limit: all have come by now.
        members = world.Get_group().Incl(places)
        return cls(mpi, world.Create_group(members), timeout_s, store)

    @property
    def backend(self) -> str:
        """Return "mpi"."""
        return "mpi"

    @property
    def bytes_moved(self) -> int:
        """Bytes this rank has sent and received so far, headers included."""
        return self._rounds.bytes_moved

    def _connect_sub_group(self, name: str, rank: int, parents: Sequence[int]) -> ProcessGroup:
        return MpiProcessGroup.connect(
            PrefixStore(self._store, f"sub_group/{name}"),
            rank=rank,
            world_size=len(parents),
            timeout_s=self._timeout_s,
        )

    def _leave(self) -> None:
        self._rounds.leave(*reason_of(self._latch.error, self.rank))


def _load() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BackendMissing(
            "the mpi backend needs mpi4py and an MPI library: install gradmesh[mpi] and mpich or"
            " openmpi, and start the trainers with mpiexec"
        ) from error
    return MPI


def _place(store: Store, rank: int, deadline: float) -> int:
    try:
        return int(store.get(f"mpi/rank/{rank}", max(0.0, deadline - time.monotonic())))
    except TimeoutError as error:
        raise CollectiveTimeout(
            f"rank {rank} did not say in time which rank it has in MPI; see whether it still runs",
            ranks=[rank],
        ) from error
