"""The buffer pool of a bucket, whose memory the user may hold as gradients.

After a pass `.grad` may lie in its bucket without a copy, until the bucket is filled again. A user
who keeps a gradient keeps a reference to its array or to the memory below it, so reference counts
show whether the memory can be reused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Array, view_of
from gradmesh.trainer.ddp.bucket_assignment import GradientSpec, offsets
from gradmesh.trainer.process_group import ProcessGroup

# Memories in a pool: one to fill, one that the user still reads, one for contexts.
_POOL_SIZE = 3
# How often the pool replaces memory that the user keeps; after that it does not lend any more.
_MAX_REPLACEMENTS = 3


@final
class BucketMemory:
    """Hold the gradients of one bucket, and one more element for the status.

    Args:
        specs: The gradients, of one dtype.
        group: Allocates the memory.
    """

    __slots__ = ("_root", "_root_count", "_view_counts", "flat", "memory", "views")

    def __init__(self, specs: Sequence[GradientSpec], group: ProcessGroup) -> None:
        ends = offsets(specs)
        self.memory = group.empty(ends[-1] + 1, specs[0].dtype)
        self.memory[...] = 0
        self.flat = self.memory[:-1]
        self._root = _root_over(self.memory)
        viewed = self.flat if self._root is None else self._root.view(self.memory.dtype)
        self.views = [
            view_of(viewed[a:b], spec.shape)
            for (a, b), spec in zip(pairwise(ends), specs, strict=True)
        ]
        del viewed
        self._view_counts = self._count_views()
        self._root_count = sys.getrefcount(self._root)

    def is_reusable(self, leaves: Sequence[Tensor], without_grads: bool = False) -> bool:
        """Return whether the memory can be filled again without changing what the user holds.

        Args:
            leaves: The bucket's parameters.
            without_grads: Whether no `.grad` may lie there either; otherwise one may, because
                backward adds to it in place.
        """
        if self._root is None:
            lent = [is_lent(leaf, view) for leaf, view in zip(leaves, self.views, strict=True)]
            return not (without_grads and any(lent))
        if sys.getrefcount(self._root) > self._root_count:
            return False
        for leaf, view, now, alone in zip(
            leaves, self.views, self._count_views(), self._view_counts, strict=True
        ):
            if now - (is_lent(leaf, view) and not without_grads) > alone:
                return False
        return True

    @property
    def is_counted(self) -> bool:
        """Whether references to the memory can be counted; not on a GPU."""
        return self._root is not None

    def _count_views(self) -> list[int]:
        return [sys.getrefcount(view) for view in self.views]


@final
class BucketMemoryPool:
    """Keep the memories that one bucket uses in turn.

    Args:
        leaves: The bucket's parameters.
        specs: Their gradients.
        group: Allocates the memory.
    """

    def __init__(
        self, leaves: Sequence[Tensor], specs: Sequence[GradientSpec], group: ProcessGroup
    ) -> None:
        self._leaves = leaves
        self._specs = specs
        self._group = group
        self._replacements = 0
        self.current = BucketMemory(specs, group)
        self._all = [self.current]

    @property
    def can_lend(self) -> bool:
        """Whether backward may write into the bucket; not if the user keeps many gradients."""
        return self.current.is_counted and self._replacements <= _MAX_REPLACEMENTS

    def acquire(self) -> BucketMemory:
        """Return memory for a pass whose gradients go to `.grad`."""
        if not self.current.is_reusable(self._leaves):
            self.current = self._acquire_other(without_grads=False)
        return self.current

    def acquire_separate(self) -> BucketMemory:
        """Return memory for a pass that must not change any `.grad`."""
        if self.current.is_reusable(self._leaves, without_grads=True):
            return self.current
        return self._acquire_other(without_grads=True)

    def _acquire_other(self, without_grads: bool) -> BucketMemory:
        for memory in self._all:
            if memory is not self.current and memory.is_reusable(self._leaves, without_grads):
                return memory
        if len(self._all) == _POOL_SIZE:
            # The user keeps what is held; the pool replaces it, a limited number of times.
            self._all = [memory for memory in self._all if memory is self.current]
            self._replacements += 1
        self._all.append(BucketMemory(self._specs, self._group))
        return self._all[-1]


def _root_over(memory: Array) -> Any:
    """Return host memory as bytes that only the views made for users refer to.

    A view of a view refers to the bottom array, not to the views between, but a buffer ends the
    chain. So references that the group holds to the memory are not counted.
    """
    if not isinstance(memory, np.ndarray):
        return None
    buffer: Any = memory.view(np.uint8)
    return np.frombuffer(memoryview(buffer), np.uint8)


def is_lent(leaf: Tensor, view: Array) -> bool:
    """Return whether a leaf's `.grad` is a view of a bucket."""
    grad = leaf.grad
    return grad is not None and not grad.is_sparse and grad.data is view
