"""Numbers of a schedule for each parameter group, and momentum that follows a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from gradmesh.engine.optim.schedule.scheduler import Scheduled


def per_group(name: str, optimizer: Scheduled, value: float | Sequence[float]) -> list[float]:
    """Return one number a group from one number or a list; a recipe counts as one group.

    Raises:
        ValueError: If a list has another length.
    """
    count = max(len(optimizer.param_groups), 1)
    if not isinstance(value, (list, tuple)):
        return [float(value)] * count  # type: ignore[arg-type]
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} values for {count} parameter groups")
    return [float(one) for one in value]


@final
class CycledMomentum:
    """Set the momentum of groups, or the first of their betas, between two bounds.

    Args:
        optimizer: Whose groups they are.
        lowest: The lower bound, for all groups or for each.
        highest: The upper bound.

    Raises:
        ValueError: If the optimizer has neither momentum nor betas.
    """

    def __init__(
        self,
        optimizer: Scheduled,
        lowest: float | Sequence[float],
        highest: float | Sequence[float],
    ) -> None:
        groups = optimizer.param_groups
        options = groups[0] if groups else getattr(optimizer, "defaults", {})
        if "momentum" not in options and "betas" not in options:
            raise ValueError(
                f"{type(optimizer).__name__} has neither momentum nor betas to cycle; "
                "pass cycle_momentum=False"
            )
        self._is_beta = "betas" in options
        self.lowest = per_group("base_momentum", optimizer, lowest)
        self.highest = per_group("max_momentum", optimizer, highest)

    def put(self, group: dict[str, Any], value: float) -> None:
        """Set the momentum of a group."""
        if self._is_beta:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value
