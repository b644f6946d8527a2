"""The phases of a distributed optimizer's step: a client requests them, each owner serves them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.common.v1 import context_pb2, value_pb2
from gradmesh.protos.errors import InvalidRequest, RefNotFound, Unreachable
from gradmesh.protos.value import from_value, to_value
from gradmesh.sdk.autograd.registry import CONTEXTS, ContextRegistry
from gradmesh.sdk.autograd.share import METHODS
from gradmesh.sdk.optim.owner import OwnerOptimizer
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.ids import key_of
from gradmesh.sdk.rpc.reply import error_from_proto, error_to_proto
from gradmesh.sdk.rpc.rref.rref import RRef
from gradmesh.sdk.transport.channel import PendingCall


@final
class StepHandler:
    """Serves the phases of steps for the parameters of one worker.

    Args:
        agent: Owns the optimizers.
        contexts: Hold the gradients.
    """

    def __init__(self, agent: Agent, contexts: ContextRegistry) -> None:
        self._agent = agent
        self._contexts = contexts

    def step(self, request: pb.StepParametersRequest) -> pb.StepParametersResponse:
        """Take one phase of a step.

        Raises:
            RefNotFound: The optimizer is gone.
            InvalidRequest: The reference is not to an optimizer.
        """
        return self.take(self._find(request.optimizer), request)

    def take(
        self, owner: OwnerOptimizer, request: pb.StepParametersRequest
    ) -> pb.StepParametersResponse:
        """Take one phase of a step of an optimizer that was found; never raises."""
        try:
            match request.phase:
                case pb.STEP_PHASE_PREPARE:
                    self._prepare(owner, request)
                case pb.STEP_PHASE_COMMIT:
                    owner.commit(request.number)
                case pb.STEP_PHASE_ABANDON:
                    owner.abandon(request.number)
                case pb.STEP_PHASE_APPLY:
                    self._prepare(owner, request)
                    owner.commit(request.number)
                case pb.STEP_PHASE_LOOK:
                    pass
                case _:
                    raise InvalidRequest(f"no phase {request.phase} of a step")
        # Errors of the catalogue, too: they are the outcome of the step, not of the call.
        except Exception as error:
            agent = self._agent
            return pb.StepParametersResponse(
                error=error_to_proto(error, "a step of the optimizer", agent.name, agent.functions)
            )
        return pb.StepParametersResponse(lead=owner.lead)

    def _prepare(self, owner: OwnerOptimizer, request: pb.StepParametersRequest) -> None:
        grads = self._contexts.gradients(request.context)
        owner.prepare(request.number, grads, _options(request.groups) if request.groups else None)

    def _find(self, ref: value_pb2.RemoteRef) -> OwnerOptimizer:
        rrefs = self._agent.rrefs
        if ref.owner != self._agent.name:
            raise InvalidRequest(f"the optimizer is on {ref.owner!r}", worker=ref.owner)
        rrefs.check_incarnation(ref)
        outcome = rrefs.owners.find(key_of(ref)).outcome
        if not outcome.done():
            raise RefNotFound(
                "the optimizer does not exist on this worker", worker=self._agent.name
            )
        error = outcome.exception()
        if error is not None:
            raise InvalidRequest(
                f"the function that should have made the optimizer raised {type(error).__name__}"
            )
        found = outcome.value()
        if not isinstance(found, OwnerOptimizer):
            raise InvalidRequest(f"a {type(found).__name__} is not a distributed optimizer")
        return found


def _options(groups: Iterable[pb.GroupOptions]) -> list[Mapping[str, Any]]:
    return [
        {name: from_value(value, []) for name, value in group.options.items()} for group in groups
    ]


_STEP = METHODS["StepParameters"]


@final
class StepClient:
    """Sends requests to the owners of a distributed optimizer, all before it reads the first reply.

    Args:
        agent: The agent of this worker.
        owners: The optimizer of each owner.
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
            phase: The phase.
            number: Number of the step.
            context: The context whose gradients are used.
            options: The options for each owner and group.
            timeout_s: Timeout of the round.

        Returns:
            The largest lead of this client over the slowest, and the errors by worker.
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
                channel = caller.directory.channel(worker, deadline)
                calls.append((worker, channel.start(_STEP, request, deadline)))
            except Exception as error:
                errors[worker] = error
        if here is not None:
            try:
                own = self._owners[self._agent.name].local_value()
                leads.append(self._take(StepHandler(self._agent, CONTEXTS).take(own, here)))
            except Exception as error:
                errors[self._agent.name] = error
        for worker, call in calls:
            try:
                leads.append(self._take(call.result()))
            except Exception as error:
                if isinstance(error, Unreachable):
                    caller.directory.suspect(worker)
                errors[worker] = error
        return max(leads), errors

    def _ref(self, worker: str) -> value_pb2.RemoteRef | None:
        """Return the wire message of a worker's optimizer; None for this worker."""
        rref = self._owners[worker]
        if rref.is_owner():
            return None
        used = rref._usable()  # raises if rpc was shut down
        ref = self._refs.get(worker)
        if ref is None:
            ref = self._refs[worker] = used.proto()
        return ref

    def _take(self, response: pb.StepParametersResponse) -> int:
        """Return the lead in a reply, or raise its error."""
        if response.HasField("error"):
            raise error_from_proto(response.error, self._agent.functions)
        return response.lead


def _groups(options: Sequence[Mapping[str, Any]]) -> list[pb.GroupOptions]:
    if not any(options):
        return []
    return [
        pb.GroupOptions(options={name: to_value(value, []) for name, value in group.items()})
        for group in options
    ]
