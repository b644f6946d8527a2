"""The trainers' runs on the parameter servers: beginning one, and going on with one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.mesh.membership import Membership
from gradmesh.sdk.mesh.servers import ParameterServers
from gradmesh.sdk.transport.deadline import Deadline


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is on the servers.

    Args:
        origin: Generation in which it began; 0 for one that has not begun.
        steps: Steps that are on all of them.
    """

    origin: int
    steps: int


@final
class Runs:
    """Runs, as rank 0 begins them.

    Args:
        servers: All servers.
        timeout_s: Of each call.
    """

    def __init__(self, servers: ParameterServers, timeout_s: float) -> None:
        self._servers = servers
        self._timeout_s = timeout_s

    def find(self, membership: Membership) -> RunState | None:
        """Return the step that the servers can go on from; None if they hold no common run.

        Every step before it is on all servers. What some of them have prepared beyond it was seen
        by nobody, and is dropped when the run goes on. From now on no older generation changes
        anything.

        Raises:
            StaleGeneration: A newer generation began.
        """
        request = pb.InspectRunRequest(generation=membership.generation)
        found = self._servers.ask_all("InspectRun", request, Deadline.after(self._timeout_s))
        steps = min(answer.prepared_steps for answer in found)
        if len({answer.origin for answer in found}) != 1 or not found[0].origin:
            return None
        if any(answer.applied_steps > steps for answer in found):
            return None
        return RunState(found[0].origin, steps)

    def begin(
        self,
        membership: Membership,
        tables: Sequence[str],
        *,
        state: RunState | None = None,
        staleness: int | None = None,
    ) -> RunState:
        """Begin a run on all servers, or go on with one; once a generation.

        Args:
            membership: This trainer's place.
            tables: Names of its tables. In a new run that has no step behind it they go back to
                their initial rows.
            state: Where to go on: what `find` returned, or with origin 0 the step of the
                checkpoint that was restored. None begins anew.
            staleness: Steps that a trainer may be ahead of the slowest one, each applying its own;
                None for a synchronous run.

        Returns:
            Where the run begins.

        Raises:
            RunLost: A server does not hold the run at that step.
            StaleGeneration: A newer generation began.
        """
        state = state or RunState(0, 0)
        request = pb.StartRunRequest(
            generation=membership.generation,
            world_size=membership.world_size,
            tables=tables,
            origin=state.origin,
            steps=state.steps,
            keep_rows=state.steps > 0,
            staleness=staleness,
        )
        self._servers.ask_all("StartRun", request, Deadline.after(self._timeout_s))
        return RunState(state.origin or membership.generation, state.steps)
