"""One backward pass as the reducer sees it."""

from __future__ import annotations

from typing import Any, final

from gradmesh.trainer.ddp.fault import Fault
from gradmesh.trainer.ddp.gradients import Gradients


@final
class BackwardPass:
    """What is known of a pass that is under way on this rank.

    Args:
        into: The map that takes its gradients; None means `.grad`.
        count: How many parameters are averaged.
    """

    __slots__ = ("faults", "gradients", "kept", "next_bucket", "order", "ready", "unused")

    def __init__(self, into: dict[Any, Any] | None, count: int) -> None:
        self.gradients = Gradients(into)
        self.ready = bytearray(count)
        self.unused: set[int] = set()
        self.order: list[int] = []
        self.next_bucket = 0
        self.faults: list[Fault] = []
        # Gradients of an earlier pass that lie in a bucket, of parameters unused in this one.
        self.kept: dict[int, Any] = {}
