"""One phase of a step, asked of all owners at once."""

from collections.abc import Mapping, Sequence
from typing import Any, final

from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.common.v1 import context_pb2, value_pb2
from gradmesh.protos.errors import Unreachable
from gradmesh.protos.value import to_value
from gradmesh.sdk.autograd.contexts import CONTEXTS
from gradmesh.sdk.autograd.part import METHODS
from gradmesh.sdk.optim.owner import OwnerOptimizer
from gradmesh.sdk.optim.stepper import Stepper
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.failure import from_proto
from gradmesh.sdk.rpc.rref.rref import RRef
from gradmesh.sdk.transport.channel import PendingCall

_STEP = METHODS["StepParameters"]


@final
class Rounds:
    """Asks the owners of a distributed optimizer; every request leaves before an answer is read.

    Args:
        agent: Of this worker.
        owners: The optimizer of each worker that has parameters.
    """

    def __init__(self, agent: Agent, owners: Mapping[str, RRef[OwnerOptimizer]]) -> None:
        self._agent = agent
        self._owners = dict(owners)
        self._refs: dict[str, value_pb2.RemoteRef] = {}

    def ask(
        self,
        phase: "pb.StepPhase",
        number: int,
        *,
        context: context_pb2.ContextId | None = None,
        options: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        timeout_s: float | None = None,
    ) -> tuple[int, dict[str, Exception]]:
        """Take one phase of a step on all owners.

        Args:
            phase: Which.
            number: Of the step.
            context: Whose gradients are used.
            options: Of each owner and group.
            timeout_s: Of the round.

        Returns:
            The largest lead of this client over the slowest, and what went wrong by worker.
        """
        caller = self._agent.caller
        deadline = caller.deadline(timeout_s)
        calls: list[tuple[str, PendingCall]] = []
        here: pb.StepParametersRequest | None = None
        leads, errors = [0], {}
        for worker in self._owners:
            try:
                request = pb.StepParametersRequest(
                    optimizer=self._ref(worker), number=number, phase=phase, context=context
                )
                if options is not None:
                    request.groups.extend(_groups(options[worker]))
                if worker == self._agent.name:
                    here = request
                    continue
                channel = caller.peers.channel(worker, deadline)
                calls.append((worker, channel.start(_STEP, request, deadline)))
            except Exception as error:
                errors[worker] = error
        if here is not None:
            try:
                own = self._owners[self._agent.name].local_value()
                leads.append(self._take(Stepper(self._agent, CONTEXTS).take(own, here)))
            except Exception as error:
                errors[self._agent.name] = error
        for worker, call in calls:
            try:
                leads.append(self._take(call.result()))
            except Exception as error:
                if isinstance(error, Unreachable):
                    caller.peers.suspect(worker)
                errors[worker] = error
        return max(leads), errors

    def _ref(self, worker: str) -> value_pb2.RemoteRef | None:
        """Return the optimizer of a worker as the wire names it; none is needed for our own."""
        rref = self._owners[worker]
        if rref.is_owner():
            return None
        used = rref._usable()  # says so if rpc was shut down
        ref = self._refs.get(worker)
        if ref is None:
            ref = self._refs[worker] = used.proto()
        return ref

    def _take(self, response: pb.StepParametersResponse) -> int:
        """Return the lead of an answer, or raise what it says."""
        if response.HasField("error"):
            raise from_proto(response.error, self._agent.functions)
        return response.lead


def _groups(options: Sequence[Mapping[str, Any]]) -> list[pb.GroupOptions]:
    if not any(options):
        return []
    return [
        pb.GroupOptions(options={name: to_value(value, []) for name, value in group.items()})
        for group in options
    ]
