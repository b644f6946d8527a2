"""The rpcs that every process serves."""

import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

from gradmesh.protos.common.v1 import context_pb2, value_pb2
from gradmesh.protos.errors import InvalidRequest, RefNotFound, RemoteFailure
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.protos.value import from_value, to_value
from gradmesh.protos.version import VERSION
from gradmesh.sdk.owner.refs import RefKey, Refs
from gradmesh.sdk.owner.registry import Registry
from gradmesh.sdk.transport.server import Call


class ContextHolder(Protocol):
    """Whatever a process keeps for contexts of distributed autograd."""

    def release(self, context: context_pb2.ContextId) -> bool:
        """Forget a context; return whether anything was kept for it."""

    def open_count(self) -> int:
        """Return how many contexts are kept."""


@final
class NoContexts:
    """A process that keeps nothing for the contexts of others."""

    def release(self, context: context_pb2.ContextId) -> bool:
        """Return False: there was nothing."""
        return False

    def open_count(self) -> int:
        """Return 0."""
        return 0


@final
class OwnerServicer:
    """Serves functions, kept values and contexts.

    Args:
        name: Name of this worker.
        role: e.g. "trainer".
        incarnation: Of this worker.
        functions: What may be called.
        contexts: What is kept for contexts.
    """

    def __init__(
        self, name: str, role: str, incarnation: int, functions: Registry, contexts: ContextHolder
    ) -> None:
        self._name = name
        self._role = role
        self._incarnation = incarnation
        self._functions = functions
        self._contexts = contexts
        self._refs = Refs()

    def describe(self, request: pb.DescribeRequest, call: Call) -> pb.DescribeResponse:
        """Tell who answers here."""
        return pb.DescribeResponse(
            name=self._name,
            role=self._role,
            incarnation=self._incarnation,
            version=VERSION,
            functions=self._functions.names(),
            open_contexts=self._contexts.open_count(),
            kept_refs=len(self._refs),
        )

    def call(self, request: Frame[pb.CallRequest], call: Call) -> Frame[pb.CallResponse]:
        """Run a function and return its result."""
        message = request.message
        result = self._run(message.function, message.args, message.kwargs, request.arrays)
        arrays: list[Array] = []
        try:
            return Frame(pb.CallResponse(result=to_value(result, arrays)), arrays)
        except InvalidRequest as error:
            raise self._failure(message.function, "returned what cannot be sent,", error) from None

    def create_ref(self, request: Frame[pb.CreateRefRequest], call: Call) -> pb.CreateRefResponse:
        """Run a function and keep its result, once for each reference."""
        message = request.message
        self._refs.create(
            self._key(message.ref),
            lambda: self._run(message.function, message.args, message.kwargs, request.arrays),
            call.deadline,
        )
        return pb.CreateRefResponse()

    def fetch_ref(self, request: pb.FetchRefRequest, call: Call) -> Frame[pb.FetchRefResponse]:
        """Read a kept value."""
        try:
            value = self._refs.fetch(self._key(request.ref), call.deadline)
        except KeyError:
            raise RefNotFound(
                f"{self._name} keeps nothing for {request.ref.creator}'s reference "
                f"{request.ref.counter}; it was deleted, or {self._name} restarted",
                worker=self._name,
                creator=request.ref.creator,
                counter=request.ref.counter,
            ) from None
        arrays: list[Array] = []
        return Frame(pb.FetchRefResponse(value=to_value(value, arrays)), arrays)

    def delete_ref(self, request: pb.DeleteRefRequest, call: Call) -> pb.DeleteRefResponse:
        """Drop a kept value."""
        self._refs.delete(self._key(request.ref))
        return pb.DeleteRefResponse()

    def release_context(
        self, request: pb.ReleaseContextRequest, call: Call
    ) -> pb.ReleaseContextResponse:
        """Forget contexts."""
        released = [self._contexts.release(id_) for id_ in (request.context, *request.others)]
        return pb.ReleaseContextResponse(found=any(released))

    def _key(self, ref: value_pb2.RemoteRef) -> RefKey:
        if ref.owner != self._name:
            raise InvalidRequest(f"the reference belongs to {ref.owner!r}, not to {self._name!r}")
        return ref.creator, ref.incarnation, ref.counter

    def _run(
        self,
        name: str,
        args: Sequence[value_pb2.Value],
        kwargs: Mapping[str, value_pb2.Value],
        arrays: list[Array],
    ) -> Any:
        function = self._functions.find(name, self._name)
        positional = [from_value(value, arrays) for value in args]
        named = {key: from_value(value, arrays) for key, value in kwargs.items()}
        try:
            return function(*positional, **named)
        # Errors of the catalogue too: raised here they would tell the caller's retry loop that
        # this worker did not act.
        except (Exception, SystemExit) as error:
            raise self._failure(name, "raised", error) from error

    def _failure(self, name: str, did: str, error: BaseException) -> RemoteFailure:
        """Return what a caller gets to know of a function that failed."""
        # Whoever registered the function is the caller's colleague: the traceback may leave.
        trace = "".join(traceback.format_exception(error, limit=-8))
        return RemoteFailure(
            f"{name} on {self._name} {did} {type(error).__name__}: {error}\n{trace}",
            function=name,
            worker=self._name,
            type=type(error).__name__,
        )
