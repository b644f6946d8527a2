"""The catalogue of errors that cross the wire.

    MeshError
    ├── InvalidRequest            a bug of the caller; do not repeat
    │   └── InvalidFrame
    ├── IdOutOfRange
    ├── TableNotFound, FunctionNotFound, RefNotFound, WorkerNotFound
    ├── TableConflict, NameTaken, KeyConflict
    ├── NotMember, ProtocolMismatch, ContextReleased, LookupNotFound, SendNotFound, LaneUnavailable,
    │   BaseLost, RunLost, ShardMismatch, JobDone, ReshardUnderWay, ReshardAborted
    ├── StaleGeneration, StaleShardMap, SnapshotLost, BackwardAborted, WorkerLost
    │                             repeat from a higher level
    ├── ShardNotReady, StepPending, RoundOpen, KeyMissing, Draining, Unreachable,
    │     Overloaded                                           repeat the call
    │   └── TicketRejected
    ├── StoreFull, LimitExceeded, NestedTooDeep
    ├── CheckpointCorrupt
    ├── Unauthenticated, Forbidden
    ├── RemoteFailure             a registered function raised
    ├── BackwardFailed            a backward pass raised on some worker
    ├── DeadlineExceeded, Cancelled
    │   └── GradientMissing
    └── InternalError

Each class defines its gRPC status, its reason on the wire and whether a retry can help. The server
interceptor, the clients, the retries and docs/errors.md all read this file. All errors are
RuntimeErrors, which torch raises when a call or a peer fails, and also the builtin that fits.
"""

from enum import Enum
from typing import ClassVar

from gradmesh.base_error import GradmeshError
from gradmesh.protos.printable import printable, received_text


class Retry(Enum):
    """What a caller may do with a failed call."""

    NEVER = "never"
    """The same call fails again."""
    CALL = "same call, with back-off"
    """The same call may succeed a little later."""
    REFRESH = "after a refresh"
    """Fetch newer state, then repeat from a higher level."""


class MeshError(RuntimeError, GradmeshError):
    """Base of every error that crosses the wire.

    Args:
        message: What happened, to which thing, and what to do.
        metadata: The values in the message, for programs.
    """

    code: ClassVar[str] = "UNKNOWN"
    reason: ClassVar[str] = ""
    retry: ClassVar[Retry] = Retry.NEVER

    def __init__(self, message: str, /, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}


class InvalidRequest(MeshError, ValueError):
    """A shape, type, count or name that the call does not allow; a bug of the caller."""

    code = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"


class InvalidFrame(InvalidRequest):
    """Bytes that are not a message of the contract: truncated, oversized or inconsistent."""

    reason = "INVALID_FRAME"


class IdOutOfRange(MeshError, IndexError):
    """A row id is below zero or beyond the table's rows; ids are 0 to rows-1."""

    code = "OUT_OF_RANGE"
    reason = "ID_OUT_OF_RANGE"


class TableNotFound(MeshError, KeyError):
    """No table has that name; create it first."""

    code = "NOT_FOUND"
    reason = "TABLE_NOT_FOUND"

    __str__ = Exception.__str__


class FunctionNotFound(MeshError, KeyError, AttributeError):
    """No such function is registered on that worker; decorate it and import its module there."""

    code = "NOT_FOUND"
    reason = "FUNCTION_NOT_FOUND"

    __str__ = Exception.__str__


class RefNotFound(MeshError, KeyError):
    """The owner has no value under that reference: it was deleted, or the owner restarted."""

    code = "NOT_FOUND"
    reason = "REF_NOT_FOUND"

    __str__ = Exception.__str__


class WorkerNotFound(MeshError, KeyError):
    """No process of that name or rank is a member; start it, or wait until it has joined."""

    code = "NOT_FOUND"
    reason = "WORKER_NOT_FOUND"

    __str__ = Exception.__str__


class TableConflict(MeshError):
    """A table of that name exists with another specification; use another name."""

    code = "ALREADY_EXISTS"
    reason = "TABLE_CONFLICT"


class NameTaken(MeshError):
    """A live process is a member under that name; choose another, or end that process."""

    code = "ALREADY_EXISTS"
    reason = "NAME_TAKEN"


class KeyConflict(MeshError):
    """The key was published with another value; keys are written once a generation."""

    code = "ALREADY_EXISTS"
    reason = "KEY_CONFLICT"


class NotMember(MeshError):
    """The process is not a member, or its lease expired; register again."""

    code = "FAILED_PRECONDITION"
    reason = "NOT_MEMBER"


class ProtocolMismatch(MeshError):
    """The two ends use different versions of the contract; run the same version on both."""

    code = "FAILED_PRECONDITION"
    reason = "PROTOCOL_MISMATCH"


class ContextReleased(MeshError):
    """The context was released; open a new one."""

    code = "FAILED_PRECONDITION"
    reason = "CONTEXT_RELEASED"


class LookupNotFound(MeshError):
    """Gradients for rows that this context never looked up here; look them up in it first."""

    code = "FAILED_PRECONDITION"
    reason = "LOOKUP_NOT_FOUND"


class SendNotFound(MeshError):
    """Gradients for a message that this worker never sent in the context; it may have restarted."""

    code = "FAILED_PRECONDITION"
    reason = "SEND_NOT_FOUND"


class LaneUnavailable(MeshError):
    """The two ends have no lane in common; the call goes through gRPC."""

    code = "FAILED_PRECONDITION"
    reason = "LANE_UNAVAILABLE"


class BaseLost(MeshError):
    """The server no longer tracks what changed since that checkpoint; make a full one."""

    code = "FAILED_PRECONDITION"
    reason = "BASE_LOST"


class RunLost(MeshError):
    """A server does not have the run at the step to resume from; start the run again."""

    code = "FAILED_PRECONDITION"
    reason = "RUN_LOST"


class ShardMismatch(MeshError):
    """A server's log holds other buckets than the shard map; start as many servers as before."""

    code = "FAILED_PRECONDITION"
    reason = "SHARD_MISMATCH"


class ReshardUnderWay(MeshError):
    """A reshard to another number of parameter servers is under way; wait until it has ended."""

    code = "FAILED_PRECONDITION"
    reason = "RESHARD_UNDER_WAY"


class ReshardAborted(MeshError):
    """The reshard was aborted; shard map and rows are as before."""

    code = "FAILED_PRECONDITION"
    reason = "RESHARD_ABORTED"


class StaleGeneration(MeshError):
    """A newer generation of trainers has formed; join again and continue in it."""

    code = "ABORTED"
    reason = "STALE_GENERATION"
    retry = Retry.REFRESH


class StaleShardMap(MeshError):
    """The rows have moved; fetch the shard map and route again."""

    code = "ABORTED"
    reason = "STALE_SHARD_MAP"
    retry = Retry.REFRESH


class SnapshotLost(MeshError):
    """The snapshot or restore ended: a new run, a restart or a timeout; start it again."""

    code = "ABORTED"
    reason = "SNAPSHOT_LOST"
    retry = Retry.REFRESH


class BackwardAborted(MeshError):
    """The backward pass was aborted because another share of it failed; start a new one."""

    code = "ABORTED"
    reason = "BACKWARD_ABORTED"
    retry = Retry.REFRESH


class WorkerLost(MeshError, ConnectionError):
    """A participating worker ended or restarted; continue without it in a new context."""

    code = "ABORTED"
    reason = "WORKER_LOST"
    retry = Retry.REFRESH


class ShardNotReady(MeshError):
    """Parameter servers are still missing or starting."""

    code = "UNAVAILABLE"
    reason = "SHARD_NOT_READY"
    retry = Retry.CALL


class StepPending(MeshError):
    """An earlier step is not applied yet: gradients of some trainers are still missing."""

    code = "UNAVAILABLE"
    reason = "STEP_PENDING"
    retry = Retry.CALL


class RoundOpen(MeshError):
    """Trainers of the next generation are still missing."""

    code = "UNAVAILABLE"
    reason = "ROUND_OPEN"
    retry = Retry.CALL


class JobDone(MeshError):
    """The job has finished already; there is nothing left to train."""

    code = "FAILED_PRECONDITION"
    reason = "JOB_DONE"


class KeyMissing(MeshError):
    """The key has not been published yet."""

    code = "UNAVAILABLE"
    reason = "KEY_MISSING"
    retry = Retry.CALL


class Draining(MeshError):
    """The process is draining and accepts no new calls."""

    code = "UNAVAILABLE"
    reason = "DRAINING"
    retry = Retry.CALL


class Unreachable(MeshError, ConnectionError):
    """The connection was refused or lost, or the two ends do not agree on TLS."""

    code = "UNAVAILABLE"
    reason = "UNREACHABLE"
    retry = Retry.CALL


class TicketRejected(Unreachable):
    """The ticket has expired, or is for another process, as after a restart; ask for a new one."""

    code = "UNAUTHENTICATED"
    reason = "TICKET_REJECTED"


class Overloaded(MeshError):
    """Too many calls run on the worker at once; it did not start this one."""

    code = "UNAVAILABLE"
    reason = "OVERLOADED"
    retry = Retry.CALL


class StoreFull(MeshError):
    """The rows do not fit into the memory allowed; add memory or parameter servers."""

    code = "RESOURCE_EXHAUSTED"
    reason = "STORE_FULL"


class LimitExceeded(MeshError):
    """A limit on what one caller, or all together, may keep here; the message names the limit."""

    code = "RESOURCE_EXHAUSTED"
    reason = "LIMIT_EXCEEDED"


class NestedTooDeep(MeshError, RecursionError):
    """Calls that wait for calls, deeper than the limit; the recursion would not end."""

    code = "RESOURCE_EXHAUSTED"
    reason = "NESTED_TOO_DEEP"


class CheckpointCorrupt(MeshError):
    """A checkpoint is incomplete, damaged or of other tables; the message names the file."""

    code = "DATA_LOSS"
    reason = "CHECKPOINT_CORRUPT"


class Unauthenticated(MeshError, PermissionError):
    """No token, or a wrong one; compare `security.token_file` on both ends."""

    code = "UNAUTHENTICATED"
    reason = "UNAUTHENTICATED"


class Forbidden(MeshError, PermissionError):
    """The caller's role may not do this; show a token or certificate of another role."""

    code = "PERMISSION_DENIED"
    reason = "FORBIDDEN"


class RemoteFailure(MeshError):
    """a registered function raised on the other worker; the message carries its traceback."""

    code = "UNKNOWN"
    reason = "REMOTE_FAILURE"


class BackwardFailed(MeshError):
    """A backward pass raised on a worker; the message names it and carries its traceback."""

    code = "UNKNOWN"
    reason = "BACKWARD_FAILED"


class DeadlineExceeded(MeshError, TimeoutError):
    """The deadline of the call passed; allow more time, or check what the worker waits for."""

    code = "DEADLINE_EXCEEDED"
    reason = "DEADLINE_EXCEEDED"


class GradientMissing(DeadlineExceeded):
    """A backward pass waited for gradients until its deadline; the message names them."""

    reason = "GRADIENT_MISSING"


class Cancelled(MeshError):
    """The caller cancelled the call; the worker may or may not have acted."""

    code = "CANCELLED"
    reason = "CANCELLED"


class InternalError(MeshError):
    """An unexpected error; the worker's log has the traceback under the request id."""

    code = "INTERNAL"
    reason = "INTERNAL"


def _leaves(cls: type[MeshError]) -> list[type[MeshError]]:
    found = [cls] if cls.reason else []
    for child in cls.__subclasses__():
        found += _leaves(child)
    return found


CATALOGUE: dict[str, type[MeshError]] = {cls.reason: cls for cls in _leaves(MeshError)}
"""Every error class of the wire by reason."""


def from_reason(reason: str, message: str, metadata: dict[str, str]) -> MeshError:
    """Rebuild an error from what arrived; an unknown reason is an InternalError.

    Its text is shown by user code, too, so its control characters become escapes here.
    """
    values = {printable(key): printable(value) for key, value in metadata.items()}
    return CATALOGUE.get(reason, InternalError)(received_text(message), **values)
