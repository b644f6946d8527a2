"""The process group over MPI, for ranks started by mpiexec.

MPI's own reductions may sum in any order. So this backend only exchanges bytes, a header and then
the payload for each peer, and the ranks sum in rank order.
"""

import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, final

from gradmesh.trainer.errors import BackendMissing, CollectiveMismatch, CollectiveTimeout
from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.collective import Collectives, Segments
from gradmesh.trainer.process_group.host_group import HostProcessGroup
from gradmesh.trainer.process_group.message import (
    HEADER_BYTES,
    MessageHeader,
    MessageKind,
    pack_header,
    shutdown_error,
    shutdown_reason,
    unpack_header,
)
from gradmesh.trainer.process_group.peer.early_frame import MAX_EARLY_BYTES, too_early
from gradmesh.trainer.process_group.process_group import ProcessGroup
from gradmesh.trainer.process_group.store import PrefixStore, Store
from gradmesh.trainer.process_group.validation import check_root

_HEADER, _DATA, _SHUTDOWN = 1, 2, 3
# Iterations without a check of the deadline: most peers answer at once.
_SPINS = 20


@final
class MpiTransport:
    """Exchange bytes over a communicator. One thread at a time.

    Args:
        mpi: The module mpi4py.MPI.
        communicator: The communicator of the group's ranks, in their order.
        abort_signal: Ends an exchange early when it is set.
    """

    def __init__(self, mpi: Any, communicator: Any, abort_signal: AbortSignal) -> None:
        self._mpi = mpi
        self._communicator = communicator
        self._abort_signal = abort_signal
        self._rank: int = communicator.Get_rank()
        self.bytes_moved = 0
        self._sent_frames: dict[int, int] = {}
        self._received_frames: dict[int, int] = {}
        self._text = ""
        self._sending: list[Any] = []
        self._keep: list[Any] = []
        self._headers: dict[int, tuple[Any, bytearray, MessageHeader, Segments]] = {}
        self._receiving: dict[int, list[Any]] = {}
        self._receivers: list[int] = []
        # Frames that arrived while this rank could only send.
        self._early: dict[int, deque[tuple[MessageHeader, bytearray]]] = {}

    def is_idle(self) -> bool:
        """Return whether no exchange is under way."""
        return not (self._sending or self._headers or self._receiving)

    def has_sent(self) -> bool:
        """Return whether all bytes have been sent."""
        self._sending = [request for request in self._sending if not request.Test()]
        return not self._sending

    def begin(
        self, text: str, outgoing: Mapping[int, Segments], incoming: Mapping[int, Segments]
    ) -> None:
        """Start to send `outgoing` and to expect `incoming`, both by peer rank."""
        self._text = text
        self._receivers = list(outgoing)
        for peer, parts in incoming.items():
            self._expect(text, peer, parts)
        for peer, parts in outgoing.items():
            number = self._sent_frames.get(peer, 0)
            self._sent_frames[peer] = number + 1
            nbytes = sum(part.nbytes for part in parts)
            header = pack_header(MessageHeader(MessageKind.DATA, number, nbytes, text))
            self._keep.append(header)
            self._send(header, peer, _HEADER)
            for part in parts:
                if part.nbytes:
                    self._send(part, peer, _DATA)

    def finish(self, deadline: float) -> None:
        """Move bytes until the exchange has finished.

        Raises:
            CollectiveTimeout: The deadline passed; names the missing ranks.
            PeerLost: A rank left.
            CollectiveMismatch: A peer is in another collective.
        """
        spins = 0
        while not self._is_over():
            spins += 1
            if spins < _SPINS:
                continue
            os.sched_yield()
            self._abort_signal.raise_if_set()
            self._check_shutdown()
            self._receive_early()
            if time.monotonic() >= deadline:
                raise self._timed_out()
        self._keep.clear()

    def leave(self, kind: MessageKind, about: int) -> None:
        """Send all peers a shutdown message, and cancel what is under way."""
        # Sends under way must complete: a peer may have received a part of them.
        for request, *_ in self._headers.values():
            request.Cancel()
        message = pack_header(MessageHeader(kind, about, 0, ""))
        self._keep.append(message)
        for peer in range(self._communicator.Get_size()):
            if peer != self._rank:
                # Small enough to be sent at once; nothing waits for it.
                self._communicator.Isend([message, self._mpi.BYTE], peer, _SHUTDOWN).Test()

    def _send(self, data: Any, peer: int, tag: int) -> None:
        self.bytes_moved += len(data)
        self._sending.append(self._communicator.Isend([data, self._mpi.BYTE], peer, tag))

    def _expect(self, text: str, peer: int, parts: Segments) -> None:
        number = self._received_frames.get(peer, 0)
        self._received_frames[peer] = number + 1
        expected = MessageHeader(MessageKind.DATA, number, sum(part.nbytes for part in parts), text)
        if early := self._early.get(peer):
            header, data = early.popleft()
            self._check(peer, header, expected)
            at = 0
            for part in parts:
                part[:] = data[at : at + part.nbytes]
                at += part.nbytes
            return
        buffer = bytearray(HEADER_BYTES)
        request = self._communicator.Irecv([buffer, self._mpi.BYTE], peer, _HEADER)
        self._headers[peer] = (request, buffer, expected, parts)

    def _is_over(self) -> bool:
        for peer, (request, buffer, expected, parts) in list(self._headers.items()):
            if request.Test():
                del self._headers[peer]
                self._check(peer, unpack_header(buffer), expected)
                self.bytes_moved += HEADER_BYTES + expected.payload_bytes
                self._receiving[peer] = [
                    self._communicator.Irecv([part, self._mpi.BYTE], peer, _DATA)
                    for part in parts
                    if part.nbytes
                ]
        for peer, requests in list(self._receiving.items()):
            if self._mpi.Request.Testall(requests):
                del self._receiving[peer]
        return self.has_sent() and not self._headers and not self._receiving

    def _receive_early(self) -> None:
        """Receive what a peer sends that should receive: both would wait for each other."""
        if self._headers or self._receiving:
            return
        for peer in self._receivers:
            while self._communicator.Iprobe(peer, _HEADER):
                buffer = bytearray(HEADER_BYTES)
                self._communicator.Recv([buffer, self._mpi.BYTE], peer, _HEADER)
                header = unpack_header(buffer)
                if header.payload_bytes > MAX_EARLY_BYTES:
                    raise too_early(f"rank {peer}", header.payload_bytes)
                data = bytearray(header.payload_bytes)
                self._receive_parts(data, peer)
                self.bytes_moved += HEADER_BYTES + len(data)
                self._early.setdefault(peer, deque()).append((header, data))

    def _receive_parts(self, data: bytearray, peer: int) -> None:
        """Receive a payload of unknown segments: each is a separate message."""
        status, rest = self._mpi.Status(), memoryview(data)
        while rest:
            self._communicator.Recv([rest, self._mpi.BYTE], peer, _DATA, status)
            rest = rest[status.Get_count(self._mpi.BYTE) :]

    def _check(self, peer: int, header: MessageHeader, expected: MessageHeader) -> None:
        if header != expected:
            raise CollectiveMismatch(
                f"rank {peer} called {header.text} with {header.payload_bytes} bytes as frame"
                f" {header.number}, this rank expects {expected.text} with"
                f" {expected.payload_bytes} bytes as frame {expected.number}; all ranks must call"
                " the same collectives in the same order"
            )

    def _check_shutdown(self) -> None:
        """Raise if a peer has sent a shutdown message."""
        status = self._mpi.Status()
        if not self._communicator.Iprobe(self._mpi.ANY_SOURCE, _SHUTDOWN, status):
            return
        peer = status.Get_source()
        buffer = bytearray(HEADER_BYTES)
        self._communicator.Recv([buffer, self._mpi.BYTE], peer, _SHUTDOWN)
        header = unpack_header(buffer)
        if header.kind is MessageKind.CLOSED and peer not in {*self._headers, *self._receiving}:
            return  # it has finished its share of this collective
        raise shutdown_error(header.kind, header.number, peer, f"MPI rank {peer}")

    def _timed_out(self) -> CollectiveTimeout:
        awaited = sorted({*self._headers, *self._receiving})
        names = ", ".join(f"rank {peer}" for peer in awaited) or "a peer to receive"
        return CollectiveTimeout(
            f"{self._text} timed out waiting for {names}; see whether it still runs, or raise the"
            " group's timeout, then restart the ranks",
            ranks=awaited,
        )


@final
class MpiProcessGroup(HostProcessGroup):
    """A process group over MPI; built by `connect`, thread-safe.

    MPI ends all processes of its world if one of them dies: no rank is left to name it.

    Args:
        mpi: The module mpi4py.MPI.
        communicator: The communicator of the group's ranks, in their order.
        timeout_s: Longest time one collective may take.
        store: Rendezvous store of sub-groups.
    """

    def __init__(self, mpi: Any, communicator: Any, timeout_s: float, store: Store) -> None:
        self._store = store
        abort_signal = AbortSignal()
        self._transport = MpiTransport(mpi, communicator, abort_signal)
        rank, size = communicator.Get_rank(), communicator.Get_size()
        collectives = Collectives(rank, size, self._transport)
        super().__init__(rank, size, timeout_s, abort_signal, collectives)

    @classmethod
    def connect(
        cls, store: Store, *, rank: int, world_size: int, timeout_s: float
    ) -> "MpiProcessGroup":
        """Connect to the other ranks of the generation and return the group.

        Args:
            store: The generation's store, shared by its ranks.
            rank: This process's rank; its rank in MPI may differ.
            world_size: Number of ranks.
            timeout_s: Longest time to connect, and for one collective later.

        Raises:
            BackendMissing: mpi4py or an MPI library is not installed.
            CollectiveTimeout: A rank did not connect in time.
        """
        check_root(rank, world_size)
        mpi = _load()
        world = mpi.COMM_WORLD
        deadline = time.monotonic() + timeout_s
        store.set(f"mpi/rank/{rank}", str(world.Get_rank()).encode())
        mpi_ranks = [_mpi_rank_of(store, peer, deadline) for peer in range(world_size)]
        # MPI waits without a timeout; by now all ranks have published theirs.
        members = world.Get_group().Incl(mpi_ranks)
        return cls(mpi, world.Create_group(members), timeout_s, store)

    @property
    def backend(self) -> str:
        """Return "mpi"."""
        return "mpi"

    @property
    def bytes_moved(self) -> int:
        """Bytes this rank has sent and received so far, headers included."""
        return self._transport.bytes_moved

    def _connect_sub_group(self, name: str, rank: int, parents: Sequence[int]) -> ProcessGroup:
        return MpiProcessGroup.connect(
            PrefixStore(self._store, f"sub_group/{name}"),
            rank=rank,
            world_size=len(parents),
            timeout_s=self._timeout_s,
        )

    def _leave(self) -> None:
        self._transport.leave(*shutdown_reason(self._abort_signal.error, self.rank))


def _load() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BackendMissing(
            "the mpi backend needs mpi4py and an MPI library: install gradmesh[mpi] and mpich or"
            " openmpi, and start the trainers with mpiexec"
        ) from error
    return MPI


def _mpi_rank_of(store: Store, rank: int, deadline: float) -> int:
    try:
        return int(store.get(f"mpi/rank/{rank}", max(0.0, deadline - time.monotonic())))
    except TimeoutError as error:
        raise CollectiveTimeout(
            f"rank {rank} did not publish its rank in MPI in time; see whether it still runs",
            ranks=[rank],
        ) from error
