"""The buckets of a reducer, and where each parameter's gradient lies in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import to_numpy
from gradmesh.trainer.ddp.bucket import Bucket, DenseBucket, make_bucket
from gradmesh.trainer.ddp.buckets import Assignment, GradientSpec
from gradmesh.trainer.ddp.exchange import on_group
from gradmesh.trainer.ddp.gradients import Gradients, copy_into
from gradmesh.trainer.process_group import ProcessGroup


@final
class Layout:
    """Buckets over some parameters.

    Args:
        leaves: The parameters.
        specs: What the layout knows of them.
        is_view: Whether `.grad` lies in the buckets.
    """

    def __init__(
        self, leaves: Sequence[Tensor], specs: Sequence[GradientSpec], is_view: bool
    ) -> None:
        self._leaves = leaves
        self._specs = specs
        self._is_view = is_view
        self.buckets: list[Bucket] = []
        self.places: list[tuple[Bucket, int]] = []
        self.assignments: list[Assignment] = []

    def build(self, assignments: Sequence[Assignment], group: ProcessGroup) -> None:
        """Make buckets; gradients that lie in the old ones move over."""
        self.assignments = list(assignments)
        self.buckets = [
            make_bucket(index, bucket.indices, self._leaves, self._specs, group)
            for index, bucket in enumerate(self.assignments)
        ]
        places: dict[int, tuple[Bucket, int]] = {}
        for made in self.buckets:
            places |= {index: (made, place) for place, index in enumerate(made.members)}
        self.places = [places[index] for index in range(len(self._leaves))]
        if self._is_view:
            for leaf, (made, place) in zip(self._leaves, self.places, strict=True):
                if isinstance(made, DenseBucket):
                    _alias(leaf, made.views[place])

    def release(self) -> None:
        """Give gradients that lie in buckets memory of their own."""
        for leaf in self._leaves:
            if leaf.grad_buffer is not None:
                part_from_bucket(leaf)
                leaf.grad_buffer = None


def _alias(leaf: Tensor, view: Any) -> None:
    held = Gradients(None).get(leaf)
    leaf.grad_buffer = view
    if held is not None and not leaf.grad.is_sparse:
        copy_into(view, held)
        leaf.grad = Tensor(view)


def part_from_bucket(leaf: Tensor) -> None:
    """Copy a leaf's gradient out of its bucket, if it lies there."""
    buffer = leaf.grad_buffer
    if buffer is None or leaf.grad is None or leaf.grad.is_sparse:
        return
    if leaf.grad.data is buffer:
        leaf.grad = Tensor(buffer.copy())


def agree(assignments: Sequence[Assignment], count: int, group: ProcessGroup) -> list[Assignment]:
    """Return rank 0's assignments; collective, in one message of fixed length."""
    words = np.zeros(3 * count + 1, np.int64)
    words[0] = len(assignments)
    for place, bucket in enumerate(assignments):
        words[1 + place] = len(bucket.indices)
        words[1 + count + place] = bucket.limit_bytes
    words[1 + 2 * count :] = [index for bucket in assignments for index in bucket.indices]
    shared = on_group(group, words)
    group.broadcast(shared, 0).wait()
    heard = [int(word) for word in to_numpy(shared)]
    made, start = [], 1 + 2 * count
    for place in range(heard[0]):
        stop = start + heard[1 + place]
        made.append(Assignment(tuple(heard[start:stop]), heard[1 + count + place]))
        start = stop
    return made
