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
from gradmesh.trainer.ddp.room import is_lent
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

    def part(self) -> None:
        """Give gradients that lie in buckets memory of their own."""
        for leaf, (bucket, place) in zip(self._leaves, self.places, strict=True):
            if isinstance(bucket, DenseBucket) and is_lent(leaf, bucket.views[place]):
                leaf.grad = Tensor(bucket.views[place].copy())

    def begin_pass(self, has_map: bool) -> None:
        """Choose memory for a pass: where gradients may lie, or where none does."""
        for bucket in self.buckets:
            bucket.reset()
            if isinstance(bucket, DenseBucket):
                if has_map:
                    bucket.stand_apart()
                elif not self._is_view:
                    bucket.lend()

    def end_pass(self) -> None:
        """Let gradients of passes that are not averaged lie elsewhere."""
        for bucket in self.buckets:
            if isinstance(bucket, DenseBucket):
                bucket.end_lending(self._is_view)

    def release(self) -> None:
        """Let go of the parameters; gradients get memory of their own."""
        self.part()
        for leaf in self._leaves:
            if leaf.grad_buffer is not None:
                leaf.grad_buffer = None


def _alias(leaf: Tensor, view: Any) -> None:
    if type(view) is not type(leaf.data):
        raise ValueError(
            f"gradient_as_bucket_view: the group's memory is not on {leaf.device}, where the"
            " parameters are; use a group of that device, or leave the option out"
        )
    held = Gradients(None).get(leaf)
    leaf.grad_buffer = view
    if held is not None and not leaf.grad.is_sparse:
        copy_into(view, held)
        leaf.grad = Tensor(view)


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
