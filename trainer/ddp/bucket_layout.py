"""The buckets of a reducer, and the slot of each parameter's gradient in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import to_numpy
from gradmesh.trainer.ddp.agreement import to_group_memory
from gradmesh.trainer.ddp.bucket import Bucket, DenseBucket, make_bucket
from gradmesh.trainer.ddp.bucket_assignment import BucketAssignment, GradientSpec
from gradmesh.trainer.ddp.bucket_memory import is_lent
from gradmesh.trainer.ddp.gradients import Gradients, copy_into
from gradmesh.trainer.process_group import ProcessGroup


@final
class BucketLayout:
    """Hold the buckets of some parameters.

    Args:
        leaves: The parameters.
        specs: Name, shape and dtype of their gradients.
        is_view: Whether `.grad` lies in the buckets.
    """

    def __init__(
        self, leaves: Sequence[Tensor], specs: Sequence[GradientSpec], is_view: bool
    ) -> None:
        self._leaves = leaves
        self._specs = specs
        self._is_view = is_view
        self.buckets: list[Bucket] = []
        self.slots: list[tuple[Bucket, int]] = []
        self.assignments: list[BucketAssignment] = []

    def build(self, assignments: Sequence[BucketAssignment], group: ProcessGroup) -> None:
        """Make buckets; gradients that lie in the old ones move to the new ones."""
        self.assignments = list(assignments)
        self.buckets = [
            make_bucket(index, bucket.indices, self._leaves, self._specs, group)
            for index, bucket in enumerate(self.assignments)
        ]
        slots: dict[int, tuple[Bucket, int]] = {}
        for made in self.buckets:
            slots |= {index: (made, slot) for slot, index in enumerate(made.members)}
        self.slots = [slots[index] for index in range(len(self._leaves))]
        if self._is_view:
            for leaf, (made, slot) in zip(self._leaves, self.slots, strict=True):
                if isinstance(made, DenseBucket):
                    _alias(leaf, made.views[slot])

    def detach_gradients(self) -> None:
        """Copy gradients that lie in buckets to memory of their own."""
        for leaf, (bucket, slot) in zip(self._leaves, self.slots, strict=True):
            if isinstance(bucket, DenseBucket) and is_lent(leaf, bucket.views[slot]):
                leaf.grad = Tensor(bucket.views[slot].copy())

    def begin_pass(self, has_map: bool) -> None:
        """Choose memory for a pass: where gradients may lie, or where none does."""
        for bucket in self.buckets:
            bucket.reset()
            if isinstance(bucket, DenseBucket):
                if has_map:
                    bucket.use_separate_memory()
                elif not self._is_view:
                    bucket.lend()

    def end_pass(self) -> None:
        """Let gradients of passes that are not averaged lie elsewhere."""
        for bucket in self.buckets:
            if isinstance(bucket, DenseBucket):
                bucket.end_lending(self._is_view)

    def release(self) -> None:
        """Release the parameters; copy their gradients to memory of their own."""
        self.detach_gradients()
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


def broadcast_assignments(
    assignments: Sequence[BucketAssignment], count: int, group: ProcessGroup
) -> list[BucketAssignment]:
    """Return rank 0's assignments; collective, in one message of fixed length."""
    words = np.zeros(3 * count + 1, np.int64)
    words[0] = len(assignments)
    for slot, bucket in enumerate(assignments):
        words[1 + slot] = len(bucket.indices)
        words[1 + count + slot] = bucket.limit_bytes
    words[1 + 2 * count :] = [index for bucket in assignments for index in bucket.indices]
    shared = to_group_memory(group, words)
    group.broadcast(shared, 0).wait()
    received = [int(word) for word in to_numpy(shared)]
    made, start = [], 1 + 2 * count
    for slot in range(received[0]):
        stop = start + received[1 + slot]
        made.append(BucketAssignment(tuple(received[start:stop]), received[1 + count + slot]))
        start = stop
    return made
