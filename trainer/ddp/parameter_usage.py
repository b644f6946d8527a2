"""Track which parameters a pass uses: on this rank, on any rank, and in a static graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import Tensor, reachable_nodes
from gradmesh.engine.backend import Array, to_numpy
from gradmesh.trainer.ddp.agreement import to_group_memory
from gradmesh.trainer.process_group import ProcessGroup, Work


@final
class ParameterUsage:
    """Record which parameters got a gradient since the last reduction.

    Args:
        count: Number of parameters.
    """

    def __init__(self, count: int) -> None:
        self._used = np.zeros(count, np.int32)
        self._sum: Array | None = None
        self._work: Work | None = None
        self._everywhere: Any = None

    def record(self, index: int) -> None:
        """Record a parameter as used on this rank."""
        self._used[index] = 1

    def is_used(self, index: int) -> bool:
        """Return whether a parameter got a gradient on this rank, local passes included."""
        return bool(self._used[index])

    def launch(self, group: ProcessGroup) -> None:
        """Start the sum over ranks; return at once."""
        self._sum = to_group_memory(group, self._used)
        self._work = group.all_reduce(self._sum)
        self._everywhere = None

    def counts(self) -> Any:
        """Return the number of ranks that used each parameter, int32; wait for the sum."""
        if self._work is not None:
            self._work.wait()
            self._everywhere = np.array(to_numpy(self._sum))
            self._work = self._sum = None
        return self._everywhere

    def reset(self) -> None:
        """Clear the records after a reduction; the last counts stay readable."""
        self._used[...] = 0


def unused_in(outputs: Iterable[Tensor], leaves: Sequence[Tensor]) -> list[int]:
    """Return the indices of the leaves that no backward from these outputs can reach."""
    found = list(outputs)
    reached = {id(tensor) for tensor in found}
    for node in reachable_nodes(found):
        for edge in node.edges:
            if edge is not None and not edge.is_node:
                reached.add(id(edge))
    return [index for index, leaf in enumerate(leaves) if id(leaf) not in reached]


@final
class StaticGraph:
    """Learn from one pass how often each gradient arrives, then expect exactly that.

    Args:
        count: Number of parameters.
    """

    def __init__(self, count: int) -> None:
        self._learning = [0] * count
        self._expected: list[int] | None = None
        self._left: list[int] = []
        self.used_on: Any = None
        """Number of ranks that use each parameter; None before the first reduction."""

    @property
    def is_known(self) -> bool:
        """Whether the counts of a pass have been learned."""
        return self._expected is not None

    def unused(self) -> list[int]:
        """Return the parameters that the learned graph does not use."""
        assert self._expected is not None
        return [index for index, times in enumerate(self._expected) if times == 0]

    def begin(self) -> None:
        """Begin a pass."""
        self._left = list(self._expected or ())
        self._learning = [0] * len(self._learning)

    def arrive(self, index: int) -> int:
        """Count a gradient; return how many more are expected, below 0 for one too many.

        While learning it is always at least 1: all buckets are sent at the end of the pass.
        """
        if self._expected is None:
            self._learning[index] += 1
            return 1
        self._left[index] -= 1
        return self._left[index]

    def late(self) -> list[int]:
        """Return the parameters whose gradients are still expected in this pass."""
        return [index for index, left in enumerate(self._left) if left > 0]

    def learn(self) -> None:
        """Expect the counts of the finished pass in all further passes."""
        self._expected = list(self._learning)
