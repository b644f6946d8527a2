"""The process group of GPUs, over NCCL.

Collectives run on the group's own stream; `wait` blocks the caller until its collective has
finished, and orders the caller's stream after it. NCCL chooses the order of sums: results are equal
on all ranks, but not bit-identical to those of the host backends.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from gradmesh.trainer.errors import GroupAborted, GroupClosed
from gradmesh.trainer.process_group import validation
from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.nccl import binding
from gradmesh.trainer.process_group.nccl.binding import make_communicator, run_with_deadline
from gradmesh.trainer.process_group.nccl.stream import CudaStream, DeviceStream
from gradmesh.trainer.process_group.nccl.watchdog import NcclWatchdog, PendingCollective
from gradmesh.trainer.process_group.process_group import AnyArray, ProcessGroup, ReduceOp
from gradmesh.trainer.process_group.store import PrefixStore, Store
from gradmesh.trainer.process_group.work import PendingWork, Work

_CLOSE_S = 5.0


@final
class NcclProcessGroup(ProcessGroup):
    """A process group over NCCL, one GPU per rank; built by `connect`, for cupy arrays.

    Args:
        communicator: NCCL's communicator of all ranks.
        rank: This process's rank.
        size: Number of ranks.
        timeout_s: Longest time one collective may take.
        store: The rendezvous store of the group.
        stream: The stream of the collectives; closed with the group.
    """

    def __init__(
        self,
        communicator: Any,
        rank: int,
        size: int,
        timeout_s: float,
        store: Store,
        stream: DeviceStream,
    ) -> None:
        self._nccl = binding.load()
        self._communicator = communicator
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s
        self._store = store
        self._stream = stream
        self._is_closed = False
        self._lock = threading.Lock()  # keeps calls in one order on the stream
        self._number = 0
        self._bytes_moved = 0
        self._sub_groups = 0
        self._children: list[NcclProcessGroup] = []
        self._abort_signal = AbortSignal()
        self._watchdog = NcclWatchdog(
            communicator, rank, size, timeout_s, store, self._abort_signal
        )

    @classmethod
    def connect(
        cls,
        store: Store,
        *,
        rank: int,
        world_size: int,
        timeout_s: float,
        device: int | None = None,
        stream: DeviceStream | None = None,
    ) -> "NcclProcessGroup":
        """Connect to the other ranks of the generation and return the group.

        Args:
            store: The generation's store, shared by its ranks.
            rank: This process's rank.
            world_size: Number of ranks.
            timeout_s: Longest time to connect, and for one collective later.
            device: Number of this rank's GPU; None for the current one.
            stream: The stream of the collectives; a new one of the device by default.

        Raises:
            BackendMissing: cupy or NCCL is not installed.
            CollectiveTimeout: A rank did not connect in time.
        """
        validation.check_root(rank, world_size)
        binding.load()
        stream = stream or CudaStream(device)
        try:
            communicator = make_communicator(store, rank, world_size, timeout_s, stream)
        except BaseException:
            stream.close()
            raise
        return cls(communicator, rank, world_size, timeout_s, store, stream)

    @property
    def backend(self) -> str:
        """Return "nccl"."""
        return "nccl"

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size

    @property
    def bytes_moved(self) -> int:
        """Bytes a ring would have moved for this rank so far: NCCL does not report them."""
        return self._bytes_moved

    def __repr__(self) -> str:
        return f"NcclProcessGroup(rank={self._rank}/{self._size})"

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike) -> AnyArray:
        """Return device memory."""
        array: AnyArray = self._stream.empty(shape, dtype)
        return array

    def all_reduce(self, array: AnyArray, op: ReduceOp = "sum") -> Work:
        """Combine `array` over all ranks, in place, in NCCL's order."""
        self._check(array, "all_reduce")
        validation.check_op(array.dtype, op, "all_reduce")
        nccl_type, nccl_op = (
            binding.dtype_constant(self._nccl, array.dtype),
            binding.op_constant(self._nccl, op),
        )

        def issue() -> None:
            flat = self._stream.contiguous(array)
            at = flat.data.ptr
            self._communicator.allReduce(
                at, at, flat.size, nccl_type, nccl_op, self._stream.pointer
            )
            self._stream.put_back(array, flat)

        text = f"all_reduce({op}) of {array.size} {array.dtype.name}"
        return self._submit(text, issue, array, 4 * (self._size - 1) * array.nbytes // self._size)

    def broadcast(self, array: AnyArray, root: int) -> Work:
        """Replace `array` on every rank by the one of rank `root`."""
        self._check(array, "broadcast")
        validation.check_root(root, self._size)

        def issue() -> None:
            flat = self._stream.contiguous(array)
            self._copy_from(root, flat, flat)
            self._stream.put_back(array, flat)

        text = f"broadcast({root}) of {array.size} {array.dtype.name}"
        return self._submit(text, issue, array, array.nbytes)

    def all_gather(self, outputs: Sequence[AnyArray], array: AnyArray) -> Work:
        """Copy each rank's `array` into `outputs[rank]` on every rank."""
        outputs = list(outputs)
        self._check(array, "all_gather", *outputs)
        validation.check_gather_shapes(outputs, array, self._rank, self._size, "all_gather")

        def issue() -> None:
            source = self._stream.contiguous(array)
            flats = [self._stream.contiguous(output) for output in outputs]
            with _Group(self._nccl):
                for root, flat in enumerate(flats):
                    self._copy_from(root, source if root == self._rank else flat, flat)
            for output, flat in zip(outputs, flats, strict=True):
                self._stream.put_back(output, flat)

        total = sum(output.nbytes for output in outputs)
        text = f"all_gather of {array.dtype.name}, {total} bytes in all"
        return self._submit(text, issue, (outputs, array), total)

    def reduce_scatter(
        self, output: AnyArray, inputs: Sequence[AnyArray], op: ReduceOp = "sum"
    ) -> Work:
        """Combine `inputs[r]` over all ranks into `output` of rank r."""
        inputs = list(inputs)
        self._check(output, "reduce_scatter", *inputs)
        validation.check_op(output.dtype, op, "reduce_scatter")
        validation.check_shares(output, inputs, self._rank, self._size, "reduce_scatter")
        nccl_type, nccl_op = (
            binding.dtype_constant(self._nccl, output.dtype),
            binding.op_constant(self._nccl, op),
        )

        def issue() -> None:
            flat = self._stream.contiguous(output)
            with _Group(self._nccl):
                for root, given in enumerate(inputs):
                    part = self._stream.contiguous(given)
                    target = flat.data.ptr if root == self._rank else 0
                    self._communicator.reduce(
                        part.data.ptr,
                        target,
                        part.size,
                        nccl_type,
                        nccl_op,
                        root,
                        self._stream.pointer,
                    )
            self._stream.put_back(output, flat)

        total = sum(given.nbytes for given in inputs)
        text = f"reduce_scatter({op}) of {output.dtype.name}"
        return self._submit(text, issue, (output, inputs), total)

    def all_to_all(self, outputs: Sequence[AnyArray], inputs: Sequence[AnyArray]) -> Work:
        """Copy `inputs[r]` of this rank into `outputs[rank]` of rank r, for all pairs."""
        outputs, inputs = list(outputs), list(inputs)
        self._check(None, "all_to_all", *outputs, *inputs)
        validation.check_swap(outputs, inputs, self._rank, self._size)
        text = f"all_to_all of {inputs[0].dtype.name}"
        return self._send_and_receive(text, dict(enumerate(inputs)), dict(enumerate(outputs)))

    def gather(self, outputs: Sequence[AnyArray] | None, array: AnyArray, root: int) -> Work:
        """Copy each rank's `array` into `outputs[rank]` on rank `root`."""
        validation.check_root(root, self._size)
        self._check(array, "gather")
        targets: dict[int, AnyArray] = {}
        if self._rank == root:
            given = list(outputs if outputs is not None else ())
            self._check(None, "gather", *given)
            validation.check_gather_shapes(given, array, self._rank, self._size, "gather")
            targets = dict(enumerate(given))
        return self._send_and_receive(
            f"gather({root}) of {array.dtype.name}", {root: array}, targets
        )

    def scatter(self, array: AnyArray, inputs: Sequence[AnyArray] | None, root: int) -> Work:
        """Copy `inputs[r]` of rank `root` into `array` of rank r."""
        validation.check_root(root, self._size)
        self._check(array, "scatter")
        sources: dict[int, AnyArray] = {}
        if self._rank == root:
            if inputs is None:
                raise ValueError(f"rank {root} scatters: it must pass one input for each rank")
            given = list(inputs)
            self._check(None, "scatter", *given)
            validation.check_shares(array, given, self._rank, self._size, "scatter")
            sources = dict(enumerate(given))
        return self._send_and_receive(
            f"scatter({root}) of {array.dtype.name}", sources, {root: array}
        )

    def send(self, array: AnyArray, to: int) -> Work:
        """Send `array` to the rank `to`; finishes when it is received."""
        self._check(array, "send")
        validation.check_peer(to, self._rank, self._size)
        text = f"send({self._rank} to {to}) of {array.size} {array.dtype.name}"
        return self._send_and_receive(text, {to: array}, {}, [to])

    def recv(self, array: AnyArray, source: int) -> Work:
        """Replace `array` by what the rank `source` sends."""
        self._check(array, "recv")
        validation.check_peer(source, self._rank, self._size)
        text = f"send({source} to {self._rank}) of {array.size} {array.dtype.name}"
        return self._send_and_receive(text, {}, {source: array}, [source])

    def barrier(self) -> Work:
        """Finish once every rank has called it."""

        def issue() -> None:
            dtype = binding.dtype_constant(self._nccl, np.dtype(np.int32))
            op = binding.op_constant(self._nccl, "max")
            at = self._stream.token
            self._communicator.allReduce(at, at, 1, dtype, op, self._stream.pointer)

        return self._submit("barrier", issue, None, 0)

    def sub_group(self, ranks: Sequence[int]) -> "NcclProcessGroup | None":
        """Return a group of some of the ranks, by a split of the communicator."""
        self._check_usable()
        members = validation.check_ranks(ranks, self._size)
        self._sub_groups += 1
        color = 0 if self._rank in members else -1

        def split() -> Any:
            self._stream.use_device()
            return self._communicator.commSplit(color, self._rank)

        deadline = time.monotonic() + self._timeout_s
        part = run_with_deadline(split, "splitting the communicator", deadline)
        if part is None or color < 0:
            return None
        store = PrefixStore(self._store, f"sub_group/{self._sub_groups}")
        rank = members.index(self._rank)
        stream = self._stream.new_stream()
        child = NcclProcessGroup(part, rank, len(members), self._timeout_s, store, stream)
        self._children.append(child)
        return child

    def abort(self) -> None:
        """End all pending works with GroupAborted, and abort what runs on the device."""
        for child in self._children:
            child.abort()
        self._watchdog.abort(GroupAborted(f"{self} was aborted; rejoin and build a new one"))

    def close(self) -> None:
        """Leave the group: pending works end with GroupClosed, and the peers are notified."""
        for child in self._children:
            child.close()
        if self._is_closed:
            return
        self._is_closed = True
        self._watchdog.abort(GroupClosed(f"{self} was closed; build a new one"))
        self._watchdog.join(_CLOSE_S)
        self._stream.close()
        self._abort_signal.close()

    def _submit(
        self,
        text: str,
        issue: Callable[[], None],
        keep: Any,
        nbytes: int,
        peers: Sequence[int] | None = None,
    ) -> Work:
        """Enqueue a collective on the stream.

        Args:
            text: The collective in words.
            issue: Calls NCCL.
            keep: Its arrays: without a reference cupy would reuse their memory too early.
            nbytes: Bytes that it moves.
            peers: The ranks that take part; all if None.
        """
        with self._lock:
            self._check_usable()
            self._stream.wait_for_caller()
            issue()
            event = self._stream.record_event()
            self._number += peers is None
            self._bytes_moved += nbytes
            work = PendingWork(text, self._watchdog, lambda: self._stream.make_caller_wait(event))
            self._watchdog.add(PendingCollective(work, event, self._number, keep, peers))
        return work

    def _send_and_receive(
        self,
        text: str,
        sources: dict[int, AnyArray],
        targets: dict[int, AnyArray],
        peers: Sequence[int] | None = None,
    ) -> Work:
        """Send and receive at once in one NCCL group call, this rank included."""
        number = int(self._nccl.NCCL_UINT8)

        def issue() -> None:
            stream, pointer = self._stream, self._stream.pointer
            flats = {peer: stream.contiguous(target) for peer, target in targets.items()}
            with _Group(self._nccl):
                for peer, source in sources.items():
                    at = stream.contiguous(source).data.ptr
                    self._communicator.send(at, source.nbytes, number, peer, pointer)
                for peer, flat in flats.items():
                    self._communicator.recv(flat.data.ptr, flat.nbytes, number, peer, pointer)
            for peer, flat in flats.items():
                stream.put_back(targets[peer], flat)

        total = sum(array.nbytes for array in (*sources.values(), *targets.values()))
        return self._submit(text, issue, (sources, targets), total, peers)

    def _copy_from(self, root: int, source: Any, target: Any) -> None:
        self._communicator.broadcast(
            source.data.ptr,
            target.data.ptr,
            target.nbytes,
            int(self._nccl.NCCL_UINT8),
            root,
            self._stream.pointer,
        )

    def _check(self, array: Any, collective: str, *more: Any) -> None:
        for value in more if array is None else (array, *more):
            if not self._stream.is_array(value):
                raise TypeError(f"{collective} takes cupy arrays, not {type(value).__name__}")

    def _check_usable(self) -> None:
        if self._is_closed:
            raise GroupClosed(f"{self} was closed; build a new one")
        self._abort_signal.raise_if_set()


@final
class _Group:
    """A group call: NCCL runs the calls inside as one."""

    def __init__(self, nccl: Any) -> None:
        self._nccl = nccl

    def __enter__(self) -> None:
        self._nccl.groupStart()

    def __exit__(self, *_: object) -> None:
        self._nccl.groupEnd()
