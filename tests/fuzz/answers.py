"""Which answers to hostile frames are right: typed errors, and refusals of unauthorised callers."""

from __future__ import annotations

import grpc

from gradmesh.protos.errors import Forbidden, InternalError, TicketRejected, Unauthenticated
from gradmesh.protos.rpcs import ACCESS, ADMIN
from gradmesh.sdk.transport.boundary import from_call
from tests.fuzz.callers import NO_TOKEN, WRONG_TOKEN

OK = "OK"

# A caller may get these before or instead of its real answer: they say nothing about its rights.
_BUSY = frozenset({"DEADLINE_EXCEEDED", "UNREACHABLE", "OVERLOADED", "LIMIT_EXCEEDED", "DRAINING"})

# The coordinator asks for a token, a member for a ticket.
_NOT_AUTHENTICATED = frozenset({Unauthenticated.reason, TicketRejected.reason})


def may_call(caller: str, path: str) -> bool:
    """Return whether a caller has the right to call an rpc."""
    return caller == ADMIN or caller in ACCESS.get(path.removeprefix("/"), ())


def reason_of(failure: grpc.RpcError) -> tuple[str, str]:
    """Return the reason of a failed call, and its text."""
    error = from_call(failure, "fuzz")
    return error.reason, f"{failure.code()}: {failure.details()}"


def problem_with(caller: str, path: str, reason: str, text: str = "") -> str | None:
    """Return what is wrong with an answer; None if it is as it must be.

    Args:
        caller: Who called.
        path: The rpc.
        reason: `OK`, or the reason of the error.
        text: The error in words.
    """
    if reason == InternalError.reason:
        return f"{path} as {caller} answers with an internal error: {text}"
    if reason in _BUSY or (reason == "INVALID_FRAME" and "RESOURCE_EXHAUSTED" in text):
        return None
    if caller in (NO_TOKEN, WRONG_TOKEN):
        expected = _NOT_AUTHENTICATED
    elif not may_call(caller, path):
        expected = frozenset({Forbidden.reason})
    else:
        return None
    if reason in expected:
        return None
    return f"{path} as {caller} answers {reason}, not {' or '.join(sorted(expected))}"
