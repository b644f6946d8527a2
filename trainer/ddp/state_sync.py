"""Makes tensors equal on all ranks by copying those of one rank, many in one message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Array, view_of
from gradmesh.trainer.ddp.gradients import copy_into
from gradmesh.trainer.process_group import ProcessGroup, Work

CHUNK_BYTES = 250 << 20
_IN_FLIGHT = 2


def broadcast_tensors(
    group: ProcessGroup, tensors: Sequence[Tensor], root: int, *, is_change: bool
) -> None:
    """Copy the tensors of one rank to all others; collective.

    Tensors of one dtype and device travel together, in messages of at most 250 MiB, two of
    them under way at a time.

    Args:
        group: The ranks.
        tensors: The same ones in the same order on every rank.
        root: Whose values are taken.
        is_change: Whether graphs recorded before must notice; a buffer that is brought into line
            between two forwards is no change of the user's.
    """
    under_way: list[tuple[Work, Array, list[Tensor]]] = []
    for chunk in _chunks(tensors):
        if len(under_way) == _IN_FLIGHT:
            _unpack(*under_way.pop(0), is_change)
        under_way.append(_launch(group, chunk, root))
    for launched in under_way:
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
