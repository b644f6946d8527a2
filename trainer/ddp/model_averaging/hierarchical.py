"""Averages over small groups often, over big ones seldom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from gradmesh.trainer.ddp.model_averaging.averager import ModelAverager, warn_if_always
from gradmesh.trainer.process_group import ProcessGroup, new_subgroups


@final
class HierarchicalModelAverager(ModelAverager):
    """Average over groups of several sizes, each with a period of its own.

    Construction is collective. At a step that several periods divide, only the last of them in the
    order of the mapping counts. Steps are counted from 0, the warm-up included.

    Args:
        period_group_size_dict: Group sizes by period, from the most frequent to the last, which
            is all ranks. A size divides the number of ranks.
        warmup_steps: As of ModelAverager.
        process_group: As of ModelAverager.

    Raises:
        ValueError: If a period or a size does not fit; no group is made then.
    """

    def __init__(
        self,
        period_group_size_dict: Mapping[int, int],
        warmup_steps: int = 0,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(warmup_steps, process_group)
        sizes = dict(period_group_size_dict)
        _check(sizes, self.process_group.size)
        warn_if_always(list(sizes)[-1])
        self.period_process_group_dict = {
            period: self.process_group
            if size == self.process_group.size
            else new_subgroups(size, self.process_group)
            for period, size in sizes.items()
        }

    def group_now(self) -> ProcessGroup | None:
        """Return the group of the last period that divides the step."""
        for period in reversed(self.period_process_group_dict):
            if self.step % period == 0:
                return self.period_process_group_dict[period]
        return None


def _check(sizes: Mapping[int, int], world_size: int) -> None:
    if not sizes:
        raise ValueError("period_group_size_dict is empty; give group sizes by period")
    if min(sizes) < 1:
        raise ValueError(f"a period of {min(sizes)} steps; use 1 or more")
    last = list(sizes.values())[-1]
    if last != world_size:
        raise ValueError(
            f"the last group of period_group_size_dict has {last} ranks; it must have all"
            f" {world_size} of the process group"
        )
    for size in sizes.values():
        if size < 1 or world_size % size:
            raise ValueError(f"groups of {size} cannot be cut from {world_size} ranks evenly")
