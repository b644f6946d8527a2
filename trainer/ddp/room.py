"""The memory of a bucket, which users may hold as gradients, and whether they still do.

After a pass `.grad` may lie in its bucket without a copy, as long as nobody can see the bucket
being filled again. Whoever keeps a gradient keeps a reference to its array or to the memory below;
so the counts of references tell whether the memory may be used again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Array, view_of
from gradmesh.trainer.ddp.buckets import GradientSpec, offsets
from gradmesh.trainer.process_group import ProcessGroup

# How many rooms a bucket keeps: one to fill, one that users still look at, one for contexts.
_ROOMS = 3
# How often a bucket takes more memory because users keep gradients.
_TRIES = 3


@final
class Room:
    """Memory for the gradients of one bucket, and one element more for the status.

    Args:
        specs: The gradients, of one dtype.
        group: Where the memory comes from.
    """

    __slots__ = ("_root", "_root_count", "_view_counts", "flat", "memory", "views")

    def __init__(self, specs: Sequence[GradientSpec], group: ProcessGroup) -> None:
        ends = offsets(specs)
        self.memory = group.empty(ends[-1] + 1, specs[0].dtype)
        self.memory[...] = 0
        self.flat = self.memory[:-1]
        self._root = _root_over(self.memory)
        seen = self.flat if self._root is None else self._root.view(self.memory.dtype)
        self.views = [
            view_of(seen[a:b], spec.shape)
            for (a, b), spec in zip(pairwise(ends), specs, strict=True)
        ]
        del seen
        self._view_counts = self._count_views()
        self._root_count = sys.getrefcount(self._root)

    def is_free(self, leaves: Sequence[Tensor], is_empty: bool = False) -> bool:
        """Tell whether nobody would notice the memory being filled again.

        Args:
            leaves: The bucket's parameters.
            is_empty: Whether no `.grad` may lie there either; otherwise one that does is no
                obstacle, since it is added to in place, as always.
        """
        if self._root is None:
            lent = [is_lent(leaf, view) for leaf, view in zip(leaves, self.views, strict=True)]
            return not (is_empty and any(lent))
        if sys.getrefcount(self._root) > self._root_count:
            return False
        for leaf, view, now, alone in zip(
            leaves, self.views, self._count_views(), self._view_counts, strict=True
        ):
            if now - (is_lent(leaf, view) and not is_empty) > alone:
                return False
        return True

    @property
    def is_counted(self) -> bool:
        """Whether references to the memory can be counted; not on a GPU."""
        return self._root is not None

    def _count_views(self) -> list[int]:
        return [sys.getrefcount(view) for view in self.views]


@final
class Rooms:
    """The memories that one bucket uses in turn.

    Args:
        leaves: The bucket's parameters.
        specs: Their gradients.
        group: Where memory comes from.
    """

    def __init__(
        self, leaves: Sequence[Tensor], specs: Sequence[GradientSpec], group: ProcessGroup
    ) -> None:
        self._leaves = leaves
        self._specs = specs
        self._group = group
        self._tries = 0
        self.home = Room(specs, group)
        self._all = [self.home]

    @property
    def is_lending(self) -> bool:
        """Whether gradients may be written straight into the bucket; not if users hoard them."""
        return self.home.is_counted and self._tries <= _TRIES

    def move_home(self) -> Room:
        """Return memory that may be filled by a pass whose gradients go to `.grad`."""
        if not self.home.is_free(self._leaves):
            self.home = self._other(is_empty=False)
        return self.home

    def apart(self) -> Room:
        """Return memory for a pass that must leave every `.grad` alone."""
        if self.home.is_free(self._leaves, is_empty=True):
            return self.home
        return self._other(is_empty=True)

    def _other(self, is_empty: bool) -> Room:
        for room in self._all:
            if room is not self.home and room.is_free(self._leaves, is_empty):
                return room
        if len(self._all) == _ROOMS:
            # Whoever holds it keeps it; we take other memory, though not for ever.
            self._all = [room for room in self._all if room is self.home]
            self._tries += 1
        self._all.append(Room(self._specs, self._group))
        return self._all[-1]


def _root_over(memory: Array) -> Any:
    """Return host memory as bytes that all views made for users refer to, and nothing else does.

    Views of views refer to the array at the bottom, past all between, but not past a buffer. So
    what a group still holds of the memory is not counted.
    """
    if not isinstance(memory, np.ndarray):
        return None
    buffer: Any = memory.view(np.uint8)
    return np.frombuffer(memoryview(buffer), np.uint8)


def is_lent(leaf: Tensor, view: Array) -> bool:
    """Tell whether a leaf's `.grad` is a part of a bucket."""
    grad = leaf.grad
    return grad is not None and not grad.is_sparse and grad.data is view
