"""A run on one server: which ranks' gradients of which step have arrived. Pure.

A step is *prepared* when every rank has contributed, and applied when a message shows that every
server has prepared it. Steps are applied in order; a repeated contribution counts once.
Contributions are merged in rank order, so that the result depends neither on the order of arrival
nor on the number of servers.
"""

from typing import final

import numpy as np

from gradmesh.engine.kernels import coalesce, unique_inverse
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import InvalidRequest, StaleGeneration, StepPending
from gradmesh.services.parameter_server.open_context import Gradient

MAX_TRAINERS = 1 << 16
"""Most trainers of a run; bounds the memory that a request can cost."""

MAX_STEPS_AHEAD = 64
"""Steps a rank may be ahead of the slowest one; its gradients are pending meanwhile."""


@final
class Run:
    """A run in its current generation.

    Args:
        generation: Generation of the trainers; 0 before the first run.
        world_size: Contributions that make a step.
        origin: Generation in which the run began.
        steps: Steps that it has completed.
        staleness: Steps that a rank may be ahead of the slowest one, each applying its own; None
            for a synchronous run.

    Attributes:
        applied_steps: Steps that are applied to the rows.
        prepared: The merged gradients of the next step, if it is prepared.
        own_steps: In a run with staleness, the applied steps of each rank.
        staged_bytes: Bytes of the contributions to steps that are not applied.
    """

    def __init__(
        self,
        generation: int = 0,
        world_size: int = 0,
        *,
        origin: int = 0,
        steps: int = 0,
        staleness: int | None = None,
    ) -> None:
        self.generation = generation
        self.world_size = world_size
        self.origin = origin
        self.staleness = staleness
        self.applied_steps = steps
        self.prepared: list[Gradient] | None = None
        self.own_steps = [] if staleness is None else [steps] * world_size
        self._staged: dict[int, dict[int, list[Gradient]]] = {}
        self.staged_bytes = 0

    @property
    def prepared_steps(self) -> int:
        """Steps that this server can apply without further gradients."""
        return self.applied_steps + (self.prepared is not None)

    def check(self, mark: context_pb2.StepMark) -> None:
        """Raise unless the mark belongs to this run.

        Raises:
            StaleGeneration: It is of another generation.
            InvalidRequest: The rank is not in this run.
        """
        if mark.generation != self.generation:
            raise StaleGeneration(
                f"generation {mark.generation} does not run here, "
                f"{self.generation or 'none'} does; join again",
                generation=mark.generation,
                current=self.generation,
            )
        if mark.rank >= self.world_size:
            raise InvalidRequest(f"rank {mark.rank} of {self.world_size} trainers", rank=mark.rank)

    def has(self, mark: context_pb2.StepMark) -> bool:
        """Return whether this contribution has arrived before."""
        if self.staleness is not None:
            return mark.step < self.own_steps[mark.rank]
        return mark.step < self.prepared_steps or mark.rank in self._staged.get(mark.step, {})

    def may_begin(self, mark: context_pb2.StepMark) -> bool:
        """Return whether the rows are those that a rank's step begins with."""
        if self.staleness is not None:
            return min(self.own_steps) + self.staleness >= mark.step
        return self.applied_steps >= mark.step

    def check_ahead(self, mark: context_pb2.StepMark) -> None:
        """Raise if a step is too far ahead of the applied ones to be stored.

        Raises:
            StepPending: It is too far ahead.
        """
        if mark.step >= self.applied_steps + MAX_STEPS_AHEAD:
            raise StepPending(
                f"step {mark.step} of rank {mark.rank} is more than {MAX_STEPS_AHEAD} ahead: "
                f"{self.applied_steps} steps are applied, some trainer's gradients are missing",
                applied_steps=self.applied_steps,
            )

    def stage(self, mark: context_pb2.StepMark, parts: list[Gradient]) -> None:
        """Store a rank's contribution to a step."""
        self._staged.setdefault(mark.step, {})[mark.rank] = parts
        self.staged_bytes += _bytes_of(parts)

    @property
    def lag_steps(self) -> int:
        """Steps begun by a rank and not prepared; with staleness, lead of the fastest rank."""
        if self.staleness is not None:
            return max(self.own_steps) - min(self.own_steps)
        return max((0, *(step + 1 - self.prepared_steps for step in self._staged)))

    def prepare(self) -> list[Gradient] | None:
        """Merge the gradients of the next step if all are here and the last one is applied."""
        ranks = self._staged.get(self.applied_steps, {})
        if self.prepared is not None or not self.world_size or len(ranks) < self.world_size:
            return None
        self.prepared = average([ranks[rank] for rank in range(self.world_size)])
        return self.prepared

    def commit(self) -> None:
        """Advance past the prepared step."""
        applied = self._staged.pop(self.applied_steps, {})
        self.staged_bytes -= sum(map(_bytes_of, applied.values()))
        self.prepared = None
        self.applied_steps += 1

    def advance(self, rank: int, steps: int) -> None:
        """Record a rank's own step, in a run with staleness."""
        self.own_steps[rank] = max(self.own_steps[rank], steps)
        self.applied_steps = min(self.own_steps)


def _bytes_of(parts: list[Gradient]) -> int:
    return sum(part.slots.nbytes + part.rows.nbytes for part in parts)


def check_run(generation: int, world_size: int, origin: int) -> None:
    """Raise unless the numbers of a run are valid.

    Raises:
        InvalidRequest: A generation or the number of trainers is out of range.
    """
    if not (1 <= world_size <= MAX_TRAINERS and max(1, origin) <= generation):
        raise InvalidRequest(
            f"a run of generation {generation} with {world_size} trainers, begun in {origin}; "
            f"generations and trainers begin at 1, there are at most {MAX_TRAINERS}",
            generation=generation,
            world_size=world_size,
        )


def average(contributions: list[list[Gradient]]) -> list[Gradient]:
    """Return one gradient per table: the mean over ranks, summed in rank order."""
    merged = [merge(gradients) for gradients in contributions]
    total = merge([gradient for gradients in merged for gradient in gradients])
    if len(contributions) == 1:
        return total
    # Divides as the reducer of the dense gradients does, for the same bits.
    return [
        Gradient(g.table, g.slots, np.divide(g.rows, len(contributions), dtype=g.rows.dtype))
        for g in total
    ]


def merge(gradients: list[Gradient]) -> list[Gradient]:
    """Return one gradient per table, repeated rows summed in order of appearance."""
    by_table: dict[str, list[Gradient]] = {}
    for gradient in gradients:
        by_table.setdefault(gradient.table, []).append(gradient)
    return [_merge_table(table, same) for table, same in by_table.items()]


def _merge_table(table: str, gradients: list[Gradient]) -> Gradient:
    if len(gradients) == 1:
        return gradients[0]
    unique, inverse = unique_inverse(np.concatenate([g.slots for g in gradients]))
    rows = np.concatenate([g.rows for g in gradients])
    return Gradient(table, unique, coalesce(inverse, rows, unique.size))
