"""Small things that ranks tell each other: numbers and texts, over any backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradmesh.engine.backend import Array, to_numpy
from gradmesh.trainer.ddp.gradients import copy_into
from gradmesh.trainer.process_group import ProcessGroup


def on_group(group: ProcessGroup, values: Any) -> Array:
    """Return a copy of an array in memory that the group's collectives take."""
    host = np.asarray(values)
    memory = group.empty(host.shape, host.dtype)
    copy_into(memory, host)
    return memory


def sum_up(group: ProcessGroup, values: Sequence[int]) -> list[int]:
    """Return the sum of each number over all ranks."""
    total = on_group(group, np.array(values, np.int64))
    group.all_reduce(total).wait()
    return [int(value) for value in to_numpy(total)]


def gather_bytes(group: ProcessGroup, own: bytes) -> list[bytes]:
    """Return what each rank contributes, in rank order."""
    lengths = group.empty((group.size, 1), np.int64)
    group.all_gather(list(lengths), on_group(group, np.array([len(own)], np.int64))).wait()
    # One byte more: not every backend moves empty arrays.
    outputs = [group.empty(int(length) + 1, np.uint8) for length in to_numpy(lengths)[:, 0]]
    group.all_gather(outputs, on_group(group, np.frombuffer(own + b"\n", np.uint8))).wait()
    return [to_numpy(output).tobytes()[:-1] for output in outputs]


def gather_texts(group: ProcessGroup, own: str) -> list[str]:
    """Return each rank's text, in rank order."""
    return [raw.decode() for raw in gather_bytes(group, own.encode())]
