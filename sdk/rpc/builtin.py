"""Functions that every worker serves without registration by a user."""

from typing import Any

from gradmesh.engine import errors, nn
from gradmesh.engine.autograd import Tensor
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.sdk.future import Future
from gradmesh.sdk.rpc.current import current_agent
from gradmesh.sdk.rpc.registry import REGISTRY, async_execution
from gradmesh.sdk.rpc.rref.rref import RRef, run_backward
from gradmesh.sdk.transport.call import current_caller
from gradmesh.sdk.transport.deadline import Deadline

GATHER = "gradmesh.rpc.gather"
BACKWARD = "gradmesh.rref.backward"

_CHECK_S = 2.0


@async_execution
def _gather(names: list[str], count: int, who: str, value: Any, timeout_s: float) -> Future[Any]:
    """Add a value to an all-gather that this worker coordinates."""
    current_caller().check_name(who)
    return current_agent().collectives.arrive(names, count, who, value, timeout_s)


def _backward(rref: RRef[Any], context: tuple[str, int, int], retain_graph: bool) -> None:
    """Run a backward pass from a value that this worker owns."""
    worker, incarnation, counter = context
    where = context_pb2.ContextId(worker=worker, incarnation=incarnation, counter=counter)
    current_agent().openers.check(current_caller(), where, Deadline.after(_CHECK_S))
    run_backward(rref.local_value(), where, retain_graph)


def register() -> None:
    """Register these functions for peers; idempotent."""
    REGISTRY.register(GATHER, _gather)
    REGISTRY.register(BACKWARD, _backward)
    REGISTRY.register("gradmesh.Tensor", Tensor)
    for name in nn.__all__:
        cls = getattr(nn, name)
        if isinstance(cls, type):
            REGISTRY.register(f"gradmesh.nn.{name}", cls)
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, Exception):
            REGISTRY.register_exception(f"gradmesh.{error.__name__}", error)


register()
