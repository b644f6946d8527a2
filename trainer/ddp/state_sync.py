"""Keep parameters and buffers equal on all ranks by broadcasts, or by the user's buffer hook."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, final

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Array, view_of
from gradmesh.engine.nn import Module
from gradmesh.trainer.ddp.comm_hook import CommFuture
from gradmesh.trainer.ddp.gradients import Gradients, copy_into
from gradmesh.trainer.process_group import ProcessGroup, Work

CHUNK_BYTES = 250 << 20
_IN_FLIGHT = 2


def broadcast_tensors(
    group: ProcessGroup, tensors: Sequence[Tensor], root: int, *, is_change: bool
) -> None:
    """Copy the tensors of one rank to all others; collective.

    Tensors of one dtype and device are packed into messages of at most 250 MiB, two of them in
    flight at a time.

    Args:
        group: The ranks.
        tensors: The tensors, in the same order on every rank.
        root: The rank whose values are copied.
        is_change: Whether to bump tensor versions, so that a graph recorded before raises; not for
            buffers synchronised between two forwards.
    """
    in_flight: list[tuple[Work, Array, list[Tensor]]] = []
    for chunk in _chunks(tensors):
        if len(in_flight) == _IN_FLIGHT:
            _unpack(*in_flight.pop(0), is_change)
        in_flight.append(_launch(group, chunk, root))
    for launched in in_flight:
        _unpack(*launched, is_change)


def _launch(
    group: ProcessGroup, chunk: list[Tensor], root: int
) -> tuple[Work, Array, list[Tensor]]:
    memory = group.empty(sum(tensor.numel() for tensor in chunk), chunk[0].dtype)
    if group.rank == root:
        for tensor, part in _parts(chunk, memory):
            copy_into(part, tensor.data)
    return group.broadcast(memory, root), memory, chunk


def _unpack(work: Work, memory: Array, chunk: list[Tensor], is_change: bool) -> None:
    work.wait()
    for tensor, part in _parts(chunk, memory):
        copy_into(tensor.data, part)
        if is_change:
            tensor.version[0] += 1


def _parts(chunk: Iterable[Tensor], memory: Array) -> Iterable[tuple[Tensor, Array]]:
    start = 0
    for tensor in chunk:
        stop = start + tensor.numel()
        yield tensor, view_of(memory[start:stop], tensor.shape)
        start = stop


def _chunks(tensors: Sequence[Tensor]) -> Iterable[list[Tensor]]:
    by_kind: dict[tuple[Any, str], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            by_kind.setdefault((tensor.dtype, str(tensor.device)), []).append(tensor)
    for alike in by_kind.values():
        chunk: list[Tensor] = []
        size = 0
        for tensor in alike:
            nbytes = tensor.numel() * tensor.element_size()
            if chunk and size + nbytes > CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
            chunk.append(tensor)
            size += nbytes
        yield chunk


BufferHook: TypeAlias = Callable[[Any, dict[str, Tensor]], Any]


class BufferHookLocation(enum.Enum):
    """When a buffer hook runs."""

    PRE_FORWARD = "pre_forward"
    POST_FORWARD = "post_forward"


@final
class Buffers:
    """Synchronise a module's buffers, by a broadcast or by the user's hook.

    Args:
        module: The module; its buffers are looked up each time, because code may rebind them.
        ignored: Names of buffers to skip.
    """

    def __init__(self, module: Module, ignored: Iterable[str]) -> None:
        self._module = module
        self._ignored = frozenset(ignored)
        self._hook: BufferHook | None = None
        self._state: Any = None
        self._location = BufferHookLocation.POST_FORWARD
        self._futures: list[CommFuture] = []

    def named(self) -> dict[str, Tensor]:
        """Return the buffers by name."""
        found = self._module.named_buffers()
        return {name: buffer for name, buffer in found if name not in self._ignored}

    def set_hook(self, state: Any, hook: BufferHook, location: BufferHookLocation) -> None:
        """Replace the broadcast by a hook."""
        if not callable(hook):
            raise TypeError(f"a buffer hook must be callable, not {type(hook).__name__}")
        self._state, self._hook, self._location = state, hook, BufferHookLocation(location)

    def before_forward(self, group: ProcessGroup, root: int) -> None:
        """Broadcast from one rank, or run a PRE_FORWARD hook; collective."""
        if self._hook is None:
            broadcast_tensors(group, list(self.named().values()), root, is_change=False)
        elif self._location is BufferHookLocation.PRE_FORWARD:
            self._run_hook()

    def after_forward(self) -> None:
        """Run a POST_FORWARD hook."""
        if self._hook is not None and self._location is BufferHookLocation.POST_FORWARD:
            self._run_hook()

    def wait(self) -> None:
        """Wait for the futures that the hook has returned."""
        futures, self._futures = self._futures, []
        for future in futures:
            future.wait()

    def wait_after(self, _: Gradients) -> None:
        """Wait at the end of a backward pass."""
        self.wait()

    def _run_hook(self) -> None:
        assert self._hook is not None
        result = self._hook(self._state, self.named())
        if result is None:
            return
        futures = [result] if isinstance(result, CommFuture) else list(result)
        for future in futures:
            if not isinstance(future, CommFuture):
                raise TypeError(
                    f"a buffer hook returned {type(future).__name__}; return a Future, a list of"
                    " them, or None"
                )
        self._futures += futures
