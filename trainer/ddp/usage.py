"""Which parameters took part: on this rank, and on any rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import Tensor, reachable_nodes
from gradmesh.engine.backend import Array, to_numpy
from gradmesh.trainer.ddp.exchange import on_group
from gradmesh.trainer.process_group import ProcessGroup, Work


@final
class Usage:
    """Note which parameters got a gradient since the last reduction.

    Args:
        count: How many parameters there are.
    """

    def __init__(self, count: int) -> None:
        self._used = np.zeros(count, np.int32)
        self._sum: Array | None = None
        self._work: Work | None = None
        self._everywhere: Any = None

    def note(self, index: int) -> None:
        """Count a parameter as used here."""
        self._used[index] = 1

    def is_used(self, index: int) -> bool:
        """Tell whether a parameter got a gradient here, also before in a local pass."""
        return bool(self._used[index])

    def launch(self, group: ProcessGroup) -> None:
        """Begin to sum over ranks; returns at once."""
        self._sum = on_group(group, self._used)
        self._work = group.all_reduce(self._sum)
        self._everywhere = None

    def counts(self) -> Any:
        """Return on how many ranks each parameter was used, int32; waits for the sum."""
        if self._work is not None:
            self._work.wait()
            self._everywhere = np.array(to_numpy(self._sum))
            self._work = self._sum = None
        return self._everywhere

    def reset(self) -> None:
        """Begin anew after a reduction; the last counts stay readable."""
        self._used[...] = 0


def unused_in(outputs: Iterable[Tensor], leaves: Sequence[Tensor]) -> list[int]:
    """Return the leaves that no backward from these outputs can reach, by their places."""
    found = list(outputs)
    reached = {id(tensor) for tensor in found}
    for node in reachable_nodes(found):
        for edge in node.edges:
            if edge is not None and not edge.is_node:
                reached.add(id(edge))
    return [place for place, leaf in enumerate(leaves) if id(leaf) not in reached]
