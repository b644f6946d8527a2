"""The trainers of a new generation agree on where to resume: at the step that all servers have.

A rank that has the dense part of that step broadcasts it. If no rank has it, or a server has lost
its rows, the run restarts: from a checkpoint if there is one, else from its first step.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradmesh.sdk.cluster.connection import Connection
from gradmesh.sdk.cluster.membership import Membership
from gradmesh.sdk.cluster.steps import RunState
from gradmesh.trainer.job.dense import DenseState
from gradmesh.trainer.process_group import ProcessGroup

_log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class Agreement:
    """Where the ranks of a generation resume; the same on all of them.

    Args:
        run: The state of the run.
        source: The rank whose dense part is used; None when all begin with initial parameters.
        lacking: Whether some rank needs it.
        batches: Batches of all trainers before this step.
    """

    run: RunState
    source: int | None
    lacking: bool
    batches: int = 0


def agree(
    connection: Connection,
    membership: Membership,
    group: ProcessGroup,
    tables: list[str],
    held: DenseState | None,
    restore: Callable[[], DenseState | None] = lambda: None,
    staleness: int | None = None,
) -> tuple[Agreement, DenseState | None]:
    """Agree on where to resume, and begin there on all servers; collective.

    Args:
        connection: To the mesh.
        membership: This trainer's rank and generation.
        group: All ranks.
        tables: Names of the run's tables.
        held: This trainer's dense part, if it has one.
        restore: Restores the tables from a checkpoint and returns the dense part; None without one.
        staleness: Steps that a trainer may be ahead of the slowest; None for a synchronous run.

    Returns:
        The agreement, and this trainer's dense part: what it held, or from the checkpoint.
    """
    own = np.zeros(5, np.int64)
    if held is not None:
        own[:] = held.origin, held.steps, held.most_steps, held.batches, held.step_batches
    all_held = np.empty((group.size, 5), np.int64)
    group.all_gather(list(all_held), own).wait()
    decision = np.zeros(4, np.int64)
    if group.rank == 0:
        decided, held = _decide(connection, membership, tables, all_held, held, restore, staleness)
        decision[:] = decided
    group.broadcast(decision, 0).wait()
    origin, steps, source, batches = decision.tolist()
    run = RunState(origin, steps)
    if source < 0:
        return Agreement(run, None, False), None
    return Agreement(run, source, not _has(all_held, origin, steps).all(), batches), held


def _decide(
    connection: Connection,
    membership: Membership,
    tables: list[str],
    all_held: NDArray[np.int64],
    held: DenseState | None,
    restore: Callable[[], DenseState | None],
    staleness: int | None,
) -> tuple[tuple[int, int, int, int], DenseState | None]:
    """Begin the run on all servers.

    Returns:
        Its origin, its steps, the rank to copy from and the batches before it; the dense part.
    """
    found = connection.find_run(membership)
    if found is not None:
        sources = np.flatnonzero(_has(all_held, found.origin, found.steps))
        if sources.size:
            begun = connection.start_run(membership, tables, state=found, staleness=staleness)
            source = int(sources[0])
            _, behind, _, batches, more = all_held[source].tolist()
            _log.info("resuming", extra={"step": begun.steps, "from_rank": source})
            batches += more if begun.steps > behind else 0
            return (begun.origin, begun.steps, source, batches), held
    if all_held[:, 0].any():
        _log.warning("the step that servers and trainers share is lost", extra={"run": str(found)})
    restored = restore()
    if restored is None:
        begun = connection.start_run(membership, tables, staleness=staleness)
        return (begun.origin, begun.steps, -1, 0), None
    state = RunState(0, restored.steps)
    begun = connection.start_run(membership, tables, state=state, staleness=staleness)
    restored = replace(restored, origin=begun.origin)
    return (begun.origin, begun.steps, 0, restored.batches), restored


def _has(held: NDArray[np.int64], origin: int, steps: int) -> NDArray[np.bool_]:
    """Return for each rank whether it has the dense part of a step."""
    has: NDArray[np.bool_] = (held[:, 1:3] == steps).any(axis=1) & (held[:, 0] == origin)
    return has
