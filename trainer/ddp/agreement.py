"""Gather small values from all ranks, and check that ranks agree on parameters and options.

Every rank gets every rank's description, so all of them raise the same error. If descriptions are
equal, the check costs one all-gather of 32 bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from gradmesh.engine.backend import Array, to_numpy
from gradmesh.protos.printable import printable_lines
from gradmesh.trainer.ddp.gradients import copy_into
from gradmesh.trainer.errors import CollectiveMismatch
from gradmesh.trainer.process_group import ProcessGroup

# Names and options of a model's parameters take kilobytes.
_MAX_BYTES = 1 << 28


def to_group_memory(group: ProcessGroup, values: Any) -> Array:
    """Return a copy of an array in memory of the group."""
    host = np.asarray(values)
    memory = group.empty(host.shape, host.dtype)
    copy_into(memory, host)
    return memory


def sum_up(group: ProcessGroup, values: Sequence[int]) -> list[int]:
    """Return the sum of each number over all ranks."""
    total = to_group_memory(group, np.array(values, np.int64))
    group.all_reduce(total).wait()
    return [int(value) for value in to_numpy(total)]


def gather_bytes(group: ProcessGroup, own: bytes) -> list[bytes]:
    """Return each rank's bytes, in rank order.

    Raises:
        CollectiveMismatch: A rank has more than any description needs.
    """
    lengths = group.empty((group.size, 1), np.int64)
    group.all_gather(list(lengths), to_group_memory(group, np.array([len(own)], np.int64))).wait()
    # A copy: in shared memory another rank can change what was checked.
    counts = np.array(to_numpy(lengths))[:, 0].tolist()
    for rank, count in enumerate(counts):
        if not 0 <= count <= _MAX_BYTES:
            raise CollectiveMismatch(
                f"rank {rank} has a description of {count} bytes, at most {_MAX_BYTES} are taken"
            )
    # One byte more: not every backend supports empty arrays.
    outputs = [group.empty(count + 1, np.uint8) for count in counts]
    group.all_gather(outputs, to_group_memory(group, np.frombuffer(own + b"\n", np.uint8))).wait()
    return [to_numpy(output).tobytes()[:-1] for output in outputs]


def gather_texts(group: ProcessGroup, own: str) -> list[str]:
    """Return each rank's text, in rank order, with control characters as escapes."""
    found = gather_bytes(group, own.encode())
    return [printable_lines(raw.decode(errors="replace")) for raw in found]


def check_agreement(group: ProcessGroup, description: Sequence[tuple[str, str]]) -> None:
    """Raise if ranks have different descriptions; collective.

    Args:
        group: The ranks.
        description: Pairs of name and value on this rank, in the same order on every rank.

    Raises:
        CollectiveMismatch: Ranks differ; raised on all of them, names the rank and the entry.
    """
    lines = [f"{name}\t{value}" for name, value in description]
    text = "\n".join(lines)
    own = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    digests = group.empty((group.size, own.size), np.uint8)
    group.all_gather(list(digests), to_group_memory(group, own)).wait()
    gathered = np.array(to_numpy(digests))
    if (gathered == gathered[0]).all():
        return
    texts = [whole.split("\n") for whole in gather_texts(group, text)]
    raise CollectiveMismatch(_explain(texts))


def _explain(texts: Sequence[Sequence[str]]) -> str:
    first, found = texts[0], []
    for rank, lines_of_rank in enumerate(texts):
        for expected, actual in zip_longest(first, lines_of_rank):
            if expected != actual:
                found.append(f"rank {rank} has {_show(actual)} where rank 0 has {_show(expected)}")
                break
    counts = [len(lines_of_rank) for lines_of_rank in texts]
    if len(set(counts)) > 1:
        listed = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(counts))
        found.append(f"entries: {listed}")
    return (
        "ranks differ in parameters or options: "
        + "; ".join(found)
        + "; build the same module with the same options on every rank"
    )


def _show(line: str | None) -> str:
    if line is None:
        return "nothing"
    return line.replace("\t", " ")
