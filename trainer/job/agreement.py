"""Where the trainers of a new generation go on: at the step that all servers have.

The servers say which step that is. Whoever has the dense part of that step gives it to those who
have not; if nobody has, there is nothing to go on with, and the run begins anew.
"""

import logging
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradmesh.sdk.mesh.membership import Membership
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.mesh.runs import RunState
from gradmesh.trainer.job.dense import DenseState
from gradmesh.trainer.process_group import ProcessGroup

_log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class Agreement:
    """What the ranks of a generation have agreed on; the same on all of them.

    Args:
        run: Where the run is.
        source: The rank whose dense part counts; None when all begin with initial parameters.
        lacking: Whether some rank needs it.
    """

    run: RunState
    source: int | None
    lacking: bool


def agree(
    mesh: Mesh,
    membership: Membership,
    group: ProcessGroup,
    tables: list[str],
    held: DenseState | None,
) -> Agreement:
    """Find out where to go on, and begin there on all servers; collective.

    Args:
        mesh: The mesh.
        membership: This trainer's place.
        group: All ranks.
        tables: Names of the run's tables.
        held: This trainer's dense part, if it has one.
    """
    own = np.array([0, 0, 0] if held is None else [held.origin, held.steps, held.most_steps])
    all_held = np.empty((group.size, 3), np.int64)
    group.all_gather(list(all_held), own.astype(np.int64)).wait()
    decision = np.zeros(3, np.int64)
    if group.rank == 0:
        decision[:] = _decide(mesh, membership, tables, all_held)
    group.broadcast(decision, 0).wait()
    origin, steps, source = decision.tolist()
    if source < 0:
        return Agreement(RunState(origin, steps), None, False)
    return Agreement(RunState(origin, steps), source, not _has(all_held, origin, steps).all())


def _decide(
    mesh: Mesh, membership: Membership, tables: list[str], held: NDArray[np.int64]
) -> tuple[int, int, int]:
    """Begin the run on all servers; return its origin, its steps and the rank to copy from."""
    found = mesh.runs.find(membership)
    sources = (
        [] if found is None else np.flatnonzero(_has(held, found.origin, found.steps)).tolist()
    )
    if found is None or not sources:
        if held[:, 0].any():
            _log.warning("nothing to go on with, beginning anew", extra={"servers": str(found)})
        begun = mesh.runs.begin(membership, tables)
        return begun.origin, begun.steps, -1
    begun = mesh.runs.begin(membership, tables, state=found)
    _log.info("going on", extra={"step": begun.steps, "from_rank": sources[0]})
    return begun.origin, begun.steps, sources[0]


def _has(held: NDArray[np.int64], origin: int, steps: int) -> NDArray[np.bool_]:
    """Return for each rank whether it has the dense part of a step."""
    has: NDArray[np.bool_] = (held[:, 1:] == steps).any(axis=1) & (held[:, 0] == origin)
    return has
