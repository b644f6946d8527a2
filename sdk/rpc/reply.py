"""The answer to a call, before it is put into the response of one rpc or another."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gradmesh.protos.common.v1.autograd_pb2 import AutogradNote
from gradmesh.protos.common.v1.value_pb2 import Value
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.rpc.rref.ids import Worker


@dataclass(slots=True, eq=False)
class Reply:
    """What a function returned or raised, or what a kept value is.

    Args:
        result: The value.
        arrays: Its arrays.
        note: Of distributed autograd.
        error: What was raised.
        type: Class of a kept value.
        methods: Its methods.
        deferred: Whether the answer comes later.
    """

    result: Value | None = None
    arrays: list[Array] = field(default_factory=list)
    note: AutogradNote | None = None
    error: pb.RemoteError | None = None
    type: str = ""
    methods: Sequence[str] = ()
    deferred: bool = False

    def called(self) -> Frame[pb.CallResponse]:
        """Return it as the response of Call."""
        message = pb.CallResponse(
            result=self.result, autograd=self.note, error=self.error, deferred=self.deferred
        )
        return Frame(message, self.arrays)

    def fetched(self) -> Frame[pb.FetchRefResponse]:
        """Return it as the response of FetchRef."""
        message = pb.FetchRefResponse(
            value=self.result, autograd=self.note, error=self.error, deferred=self.deferred
        )
        return Frame(message, self.arrays)

    def described(self) -> pb.DescribeRefResponse:
        """Return it as the response of DescribeRef."""
        return pb.DescribeRefResponse(
            type=self.type, methods=self.methods, error=self.error, deferred=self.deferred
        )

    def delivered(self, caller: Worker, call_id: int, worker: Worker) -> Frame[pb.DeliverRequest]:
        """Return it as the request of Deliver."""
        message = pb.DeliverRequest(
            caller=caller.proto(),
            call_id=call_id,
            worker=worker.proto(),
            result=self.result,
            autograd=self.note,
            error=self.error,
            type=self.type,
            methods=self.methods,
        )
        return Frame(message, self.arrays)


DEFERRED = Reply(deferred=True)
"""Says that the answer comes later."""


def reply_of(body: Any) -> Reply:
    """Return the answer in a response, or in the request of Deliver."""
    arrays: list[Array] = []
    if isinstance(body, Frame):
        body, arrays = body.message, body.arrays
    if type(body) is pb.CallResponse:
        return Reply(
            body.result if body.HasField("result") else None,
            arrays,
            body.autograd if body.HasField("autograd") else None,
            body.error if body.HasField("error") else None,
            deferred=body.deferred,
        )
    if isinstance(body, pb.CreateRefResponse):
        return Reply(deferred=body.deferred)
    error = body.error if body.HasField("error") else None
    deferred = getattr(body, "deferred", False)
    if isinstance(body, pb.DescribeRefResponse):
        return Reply(type=body.type, methods=body.methods, error=error, deferred=deferred)
    note = body.autograd if body.HasField("autograd") else None
    field = "value" if isinstance(body, pb.FetchRefResponse) else "result"
    value = getattr(body, field) if body.HasField(field) else None
    reply = Reply(value, arrays, note, error, deferred=deferred)
    if isinstance(body, pb.DeliverRequest):
        reply.type, reply.methods = body.type, body.methods
    return reply
