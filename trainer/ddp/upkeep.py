"""What a wrapper offers besides training: another group, announced ids, statistics, its end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from gradmesh.engine.nn import Module
from gradmesh.trainer.ddp.construction import check_sparse_ids
from gradmesh.trainer.ddp.log_data import LogData
from gradmesh.trainer.ddp.reducer import Reducer
from gradmesh.trainer.ddp.timeline import Timeline
from gradmesh.trainer.process_group import ProcessGroup


class Upkeep(Module):
    """The part of DistributedDataParallel that no pass needs."""

    _group: ProcessGroup
    _reducer: Reducer
    _timeline: Timeline
    _log: LogData
    _iteration: int
    _synced_last: bool

    def update_process_group(self, group: ProcessGroup, sync_state: bool = True) -> None:
        """Go on with other ranks, also after a backward pass that failed; collective.

        Communication hooks keep the groups they were given.

        Args:
            group: The new ranks.
            sync_state: Copy parameters and buffers of the new rank 0: after a failure some ranks
                may be a step ahead of others.
        """
        self._group = group
        self._reducer.move_to(group)
        # Ranks of which some failed in a forward may differ in it.
        self._synced_last = True
        if sync_state:
            self._copy_state(0)
        self._log.set(world_size=group.size, rank=group.rank, has_error=0, error="")

    def set_sparse_ids(self, ids: Mapping[str, Any]) -> None:
        """Announce which rows have gradients, over all ranks, in the next pass.

        With them a sparse gradient is summed without gathering ids.

        Args:
            ids: By parameter name, the same on every rank, for every sparse parameter.
        """
        check_sparse_ids(self._reducer, ids)

    def set_runtime_stats_sample_rate(self, rate: int) -> None:
        """Sample every `rate`-th iteration after the first ten.

        Raises:
            ValueError: If the rate is below 1.
        """
        self._timeline.set_rate(rate)

    def logging_data(self) -> dict[str, Any]:
        """Return statistics of construction and of the last sampled iteration."""
        if self._iteration >= 0:
            self._log.sample(self._iteration)
        return self._log.snapshot()

    def check_reduction_finished(self) -> None:
        """Raise UnfinishedReduction if the last backward pass ended with an error."""
        self._reducer.check_finished()

    def remove_autograd_hooks(self) -> None:
        """Stop averaging; the module trains on alone."""
        self._reducer.release()

    @abstractmethod
    def _copy_state(self, root: int, with_buffers: bool = True) -> None:
        """Copy parameters and buffers of one rank to all; collective."""
