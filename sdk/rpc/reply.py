"""The reply to a call, independent of the rpc whose response carries it."""

import builtins
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, final

from gradmesh.protos import limits
from gradmesh.protos.bound import Tally
from gradmesh.protos.common.v1.autograd_pb2 import AutogradNote
from gradmesh.protos.common.v1.value_pb2 import Value
from gradmesh.protos.errors import CATALOGUE, MeshError, RemoteFailure
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.protos.printable import printable, received_text
from gradmesh.sdk.future import Future
from gradmesh.sdk.rpc.ids import WorkerId, worker_of
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.rref.control import RRefControl
from gradmesh.sdk.rpc.senders import Senders
from gradmesh.sdk.rpc.threads import Task
from gradmesh.sdk.transport.deadline import Deadline

# A long chain of nested calls would include the traceback of each.
_MAX_TEXT = 64 * 2**10

# Raising these at the caller would change control flow: the end of a loop or generator.
_MISLEADING = {"StopIteration", "StopAsyncIteration", "GeneratorExit"}


@dataclass(slots=True, eq=False)
class Reply:
    """The outcome of a function, or the type of an owned value.

    Args:
        result: The value.
        arrays: Its arrays.
        note: The note of distributed autograd.
        error: The error that was raised.
        type: Class name of an owned value.
        methods: Its methods.
        deferred: Whether the reply follows later.
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

    def delivered(
        self, caller: WorkerId, call_id: int, worker: WorkerId
    ) -> Frame[pb.DeliverRequest]:
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
"""The reply that announces a deferred one."""


def reply_of(body: Any) -> Reply:
    """Return the reply in a response, or in the request of Deliver."""
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


def error_to_proto(
    error: BaseException, function: str, worker: str, functions: Registry
) -> pb.RemoteError:
    """Return an exception as a wire message.

    Registered functions belong to the same application as the caller, so the traceback is sent.
    """
    metadata: dict[str, str] = {}
    if isinstance(error, MeshError):
        kind, text, metadata = error.reason or type(error).__name__, error.message, error.metadata
    else:
        kind = functions.exception_name(type(error)) or type(error).__name__
        text = _text(error)
    trace = "".join(traceback.format_exception(error, limit=-8))
    return pb.RemoteError(
        type=kind,
        message=_fit(text),
        traceback=_fit(trace),
        worker=worker,
        function=function,
        metadata=metadata,
    )


def error_from_proto(error: pb.RemoteError, functions: Registry) -> Exception:
    """Return the exception to raise here.

    Its type is the one that was raised if it is builtin, registered or of the catalogue, else
    RemoteFailure. Its text names the worker and ends with the remote traceback; the attributes
    `remote_worker`, `remote_type` and `remote_traceback` have the parts.
    """
    # The text of another process; user code may print it.
    worker, function = printable(error.worker), printable(error.function)
    kind, trace = printable(error.type), received_text(error.traceback)
    text = f"{received_text(error.message)}\n\n{function} on {worker}:\n{trace}"
    raised = _make(error, text, functions)
    if raised is None:
        raised = RemoteFailure(
            f"{function} on {worker} raised {kind}: {text}",
            function=function,
            worker=worker,
            type=kind,
        )
    raised.remote_worker = worker  # type: ignore[attr-defined]
    raised.remote_type = kind  # type: ignore[attr-defined]
    raised.remote_traceback = trace  # type: ignore[attr-defined]
    return raised


def _make(error: pb.RemoteError, text: str, functions: Registry) -> Exception | None:
    known = CATALOGUE.get(error.type)
    if known is not None:
        values = {printable(key): printable(value) for key, value in error.metadata.items()}
        return known(text, **values)
    cls = functions.exception(error.type) or _builtin(error.type)
    if cls is None:
        return None
    try:
        made = cls(text)
    except Exception:
        return None  # its constructor needs more than a text
    return made if isinstance(made, cls) else None


@lru_cache(maxsize=128)
def _builtin(name: str) -> type[Exception] | None:
    cls = getattr(builtins, name, None)
    if not isinstance(cls, type) or not issubclass(cls, Exception) or name in _MISLEADING:
        return None
    if issubclass(cls, KeyError):
        # A KeyError shows its text quoted on one line, which makes a traceback unreadable.
        return type(name, (cls,), {"__str__": Exception.__str__, "__module__": "builtins"})
    return cls


def _text(error: BaseException) -> str:
    if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
        return error.args[0]
    try:
        return str(error)
    except Exception:
        return f"a {type(error).__name__} without a message"


def _fit(text: str) -> str:
    """Return a text as valid Unicode, without its middle if it is too long."""
    text = text.encode(errors="replace").decode()
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[: _MAX_TEXT // 2]}\n…\n{text[-_MAX_TEXT // 2 :]}"


@final
class DeferredReplies:
    """The calls of other workers whose deferred replies are outstanding.

    What one worker, and all together, may have outstanding is bounded: in calls, and in bytes of
    arguments, which are kept until their functions have run.

    Args:
        me: The worker.
        control: Sends the replies to the callers.
        run: Runs a task on a thread.
    """

    def __init__(self, me: WorkerId, control: RRefControl, run: Callable[[Task], None]) -> None:
        self._me = me
        self._control = control
        self._senders = Senders(run)
        self._changed = threading.Condition()  # guards all below
        self._outstanding: dict[tuple[WorkerId, int], int] = {}
        self._calls = Tally(limits.DEFERRED)
        self._bytes = Tally(limits.QUEUED_BYTES)

    @property
    def are_few(self) -> bool:
        """Whether any worker may have one more call, so that `check_room` need not be asked."""
        return self._calls.is_low and self._bytes.is_low

    def check_room(self, caller: WorkerId, size: int) -> None:
        """Check that one more call of a worker may have its reply deferred.

        Args:
            caller: The calling worker.
            size: Bytes of the request.

        Raises:
            LimitExceeded: Too many are outstanding.
        """
        with self._changed:
            self._calls.check(caller.name)
            self._bytes.check(caller.name, size)

    def defer(
        self,
        caller: WorkerId,
        call_id: int,
        reply: Future[Reply],
        fail: Callable[[BaseException], Reply],
        size: int = 0,
    ) -> None:
        """Send a reply to its caller when it is complete.

        Args:
            caller: The calling worker.
            call_id: The caller's number of the call.
            reply: The future of the reply.
            fail: Makes the reply for an error.
            size: Bytes of the request.
        """
        call = (caller, call_id)
        with self._changed:
            self._forget(call)  # a repeated number
            self._outstanding[call] = size
            self._calls.add(caller.name)
            self._bytes.add(caller.name, size)

        def deliver() -> None:
            try:
                error = reply.exception()
                answer = reply.value() if error is None else fail(error)
                self._control.deliver(
                    "Deliver", caller, answer.delivered(caller, call_id, self._me)
                )
            finally:
                with self._changed:
                    self._forget(call)
                    self._changed.notify_all()

        reply.add_done_callback(lambda _: self._senders.send(caller.name, deliver))

    def _forget(self, call: tuple[WorkerId, int]) -> None:
        size = self._outstanding.pop(call, None)
        if size is not None:
            self._calls.remove(call[0].name)
            self._bytes.remove(call[0].name, size)

    def unknown(self, caller: WorkerId, call_ids: Iterable[int]) -> list[int]:
        """Return which of a caller's calls have no outstanding reply here."""
        with self._changed:
            return [count for count in call_ids if (caller, count) not in self._outstanding]

    def wait_idle(self, deadline: Deadline, but: Callable[[], int] = lambda: 0) -> bool:
        """Wait until at most `but()` replies are outstanding."""
        with self._changed:
            return self._changed.wait_for(
                lambda: len(self._outstanding) <= but(), deadline.remaining_s()
            )

    def __len__(self) -> int:
        return len(self._outstanding)


def caller_of(
    message: pb.CallRequest | pb.CreateRefRequest | pb.FetchRefRequest | pb.DescribeRefRequest,
) -> WorkerId | None:
    """Return the caller of a request, or None if a deferred reply cannot be sent to it."""
    if not message.HasField("caller") or not message.call_id:
        return None
    return worker_of(message.caller)
