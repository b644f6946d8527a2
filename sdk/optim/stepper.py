"""Steps of distributed optimizers, as the worker that has the parameters serves them."""

from collections.abc import Iterable, Mapping
from typing import Any, final

from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.common.v1 import value_pb2
from gradmesh.protos.errors import InvalidRequest, RefNotFound
from gradmesh.protos.value import from_value
from gradmesh.sdk.autograd.contexts import Contexts
from gradmesh.sdk.optim.owner import OwnerOptimizer
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.failure import to_proto
from gradmesh.sdk.rpc.rref.ids import key_of


@final
class Stepper:
    """Steps the parameters of one worker.

    Args:
        agent: Keeps the optimizers.
        contexts: Have the gradients.
    """

    def __init__(self, agent: Agent, contexts: Contexts) -> None:
        self._agent = agent
        self._contexts = contexts

    def step(self, request: pb.StepParametersRequest) -> pb.StepParametersResponse:
        """Take one phase of a step.

        Raises:
            RefNotFound: The optimizer is gone.
            InvalidRequest: The reference is to something else.
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
        # Of the catalogue, too: they are what became of the step, not of the call.
        except Exception as error:
            agent = self._agent
            return pb.StepParametersResponse(
                error=to_proto(error, "a step of the optimizer", agent.name, agent.functions)
            )
        return pb.StepParametersResponse(lead=owner.lead)

    def _prepare(self, owner: OwnerOptimizer, request: pb.StepParametersRequest) -> None:
        grads = self._contexts.gradients(request.context)
        owner.prepare(request.number, grads, _options(request.groups) if request.groups else None)

    def _find(self, ref: value_pb2.RemoteRef) -> OwnerOptimizer:
        exchange = self._agent.exchange
        if ref.owner != self._agent.name:
            raise InvalidRequest(f"the optimizer is on {ref.owner!r}", worker=ref.owner)
        exchange.check_incarnation(ref)
        outcome = exchange.owners.find(key_of(ref)).outcome
        if not outcome.done():
            raise RefNotFound("there is no such optimizer here", worker=self._agent.name)
        found = outcome.value()
        if not isinstance(found, OwnerOptimizer):
            raise InvalidRequest(f"a {type(found).__name__} is no distributed optimizer")
        return found


def _options(groups: Iterable[pb.GroupOptions]) -> list[Mapping[str, Any]]:
    return [
        {name: from_value(value, []) for name, value in group.options.items()} for group in groups
    ]
