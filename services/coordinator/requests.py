"""Checks of requests before the coordinator's lock is taken: their size, and what they may name.

So a large or malformed request costs its sender's thread, not the members that wait for the lock.
"""

from collections.abc import Mapping
from typing import TypeAlias

from google.protobuf.message import Message

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import (
    data_pb2,
    membership_pb2,
    rendezvous_pb2,
    reshard_pb2,
    status_pb2,
    table_pb2,
    ticket_pb2,
)
from gradmesh.protos.errors import InvalidRequest, LimitExceeded
from gradmesh.protos.limits import check_count, check_name, check_text
from gradmesh.services.coordinator.catalogue import check_spec
from gradmesh.services.coordinator.data_set import MAX_POSITION_BYTES, Stored, read_position

Openers: TypeAlias = Mapping[tuple[str, int], int]
"""Number of contexts by name and incarnation of the process that opened them."""

_NAMES_BYTES = 2**10

# Requests may carry fields of later versions, which are kept with the others: all bytes count.
_MOST_BYTES: Mapping[type[Message], int] = {
    membership_pb2.RenewLeaseRequest: limits.MAX_OPENERS * (limits.MAX_NAME_BYTES + 64),
    rendezvous_pb2.PutKeyRequest: 2 * limits.MAX_VALUE_BYTES,
    ticket_pb2.IssueTicketsRequest: limits.MAX_TICKETS * (limits.MAX_NAME_BYTES + 64),
    ticket_pb2.CheckWorkersRequest: limits.MAX_TICKETS * (limits.MAX_NAME_BYTES + 64),
    data_pb2.SetDataPositionRequest: MAX_POSITION_BYTES + _NAMES_BYTES,
}

# Requests for checkpoints are numbered; a report must not exhaust the numbers.
_MAX_REQUEST = 2**62


def check_size(request: Message) -> None:
    """Check that a request is as small as the requests of its rpc are.

    Raises:
        LimitExceeded: It is larger.
    """
    most = _MOST_BYTES.get(type(request), limits.MAX_COORDINATOR_REQUEST_BYTES)
    size = request.ByteSize()
    if size > most:
        raise LimitExceeded(
            f"a {type(request).__name__} of {size} bytes, the limit is {most}; send less in it",
            limit="request bytes",
            most=most,
        )


def check_register(request: membership_pb2.RegisterRequest) -> None:
    """Check the size of a registration."""
    check_size(request)
    check_text("address", request.member.address, limits.MAX_ADDRESS_BYTES)


def openers_of(request: membership_pb2.RenewLeaseRequest) -> Openers:
    """Return the openers of the contexts on a member, and the number of contexts of each.

    Raises:
        LimitExceeded: They are too many.
    """
    openers = request.context_openers
    # The cheapest check first: an opener takes two bytes at least.
    check_count("openers of contexts", len(openers), limits.MAX_OPENERS)
    check_count("openers of contexts", len(request.context_counts), limits.MAX_OPENERS)
    check_size(request)
    counts = (*request.context_counts, *[1] * len(openers))
    return {(w.name, w.incarnation): n for w, n in zip(openers, counts, strict=False)}


def check_key(request: rendezvous_pb2.PutKeyRequest) -> None:
    """Check name and size of a value.

    Raises:
        InvalidRequest: The name is not valid, or the value is too large.
    """
    check_size(request)
    check_name("key", request.key)
    if len(request.value) > limits.MAX_VALUE_BYTES:
        raise InvalidRequest(
            f"key {request.key!r}: {len(request.value)} bytes; at most "
            f"{limits.MAX_VALUE_BYTES} are allowed",
            key=request.key,
        )


def check_table(request: table_pb2.CreateTableRequest) -> None:
    """Check the specification of a table."""
    check_name("table", request.spec.name)
    size = request.spec.ByteSize()
    if size > limits.MAX_TABLE_SPEC_BYTES:
        raise LimitExceeded(
            f"table {request.spec.name!r}: a specification of {size} bytes, the limit is "
            f"{limits.MAX_TABLE_SPEC_BYTES}; leave out unknown fields",
            limit="bytes of a specification",
            most=limits.MAX_TABLE_SPEC_BYTES,
        )
    check_size(request)
    check_spec(request.spec)


def check_take(request: data_pb2.TakeShardRequest) -> None:
    """Check size and name of a request for a shard."""
    check_size(request)
    check_name("data set", request.dataset)
    check_count("finished shards", len(request.done), limits.MAX_SHARDS_HELD)


def position_of(request: data_pb2.SetDataPositionRequest) -> Stored:
    """Return the position in a request.

    Raises:
        InvalidRequest: It is not a position.
    """
    check_size(request)
    return read_position(request.dataset, request.position)


def check_result(request: status_pb2.ReportResultRequest) -> None:
    """Check the size of a result, and the name of its job."""
    check_size(request)
    check_count("figures of a result", len(request.figures), limits.MAX_FIGURES)
    if request.job:
        check_name("job", request.job)


def check_checkpoint(request: status_pb2.ReportCheckpointRequest) -> None:
    """Check the report of a checkpoint.

    Raises:
        InvalidRequest: It answers a request that cannot have been made.
    """
    check_size(request)
    check_text("error of a checkpoint", request.checkpoint.error)
    check_text("path of a checkpoint", request.checkpoint.path)
    if request.checkpoint.request > _MAX_REQUEST:
        raise InvalidRequest(
            f"a checkpoint for request {request.checkpoint.request}, which was never made; report "
            "the number of the request, or 0",
            request=request.checkpoint.request,
        )


def check_move(request: reshard_pb2.ReportMoveRequest) -> None:
    """Check the size of a report about a reshard."""
    check_size(request)
    check_text("error of a reshard", request.error)
