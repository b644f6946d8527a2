"""The call that a handler serves, and who makes it."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from gradmesh.protos.errors import Forbidden
from gradmesh.protos.frame import Array
from gradmesh.protos.method import Method
from gradmesh.protos.rpcs import ACCESS, ADMIN, MAY_REGISTER, READER
from gradmesh.sdk.transport.deadline import Deadline


@final
@dataclass(frozen=True, slots=True)
class CallerRole:
    """The role of an authenticated caller, which decides what it may do.

    Args:
        role: One of `protos.rpcs.ROLES`.
    """

    role: str = ADMIN

    @property
    def only_reads(self) -> bool:
        """Whether its calls may change nothing."""
        return self.role == READER

    def check(self, path: str) -> None:
        """Check that it may call an rpc.

        Raises:
            Forbidden: Its role may not.
        """
        # An rpc without a row in the table is for admins.
        if self.role != ADMIN and self.role not in ACCESS.get(path.removeprefix("/"), ()):
            raise self.refuse(f"call {path.rpartition('/')[2]}")

    def check_member(self, role: str) -> None:
        """Check that it may become a member of a role.

        Raises:
            Forbidden: It may not.
        """
        if self.role != ADMIN and role not in MAY_REGISTER[self.role]:
            raise self.refuse(f"be a {role or 'member without a role'}, or speak for one")

    def refuse(self, what: str) -> Forbidden:
        """Return the error for something that it may not do."""
        return Forbidden(
            f"the role {self.role!r} may not {what}; show a token or certificate of a role that "
            "may (docs/operations.md has the table)",
            role=self.role,
        )


UNRESTRICTED = CallerRole()
"""The role of every caller of a cluster that asks for neither tokens nor certificate roles."""

_current: ContextVar[CallerRole] = ContextVar("caller", default=UNRESTRICTED)


def current_caller() -> CallerRole:
    """Return the role of the caller that this thread serves."""
    return _current.get()


def set_caller(caller: CallerRole) -> None:
    """Set the role of the caller that this thread serves."""
    _current.set(caller)


MAX_CALL_S = 600.0
"""Deadline of a call whose client set none, and the longest: every wait is bounded."""

ArrayAllocator: TypeAlias = Callable[[tuple[int, ...], Any], Array]
"""Returns memory for an array, given its shape and dtype."""


@dataclass(slots=True, eq=False)
class Call:
    """The call that a handler serves.

    Args:
        deadline: When the client stops waiting.
        peer: Address of the client.
        empty: Returns memory for an array of the response; on a lane, memory that is sent without
            a copy.
        borrowed: Whether the request's arrays are invalid after the handler returns; a handler that
            keeps one must copy it.
        caller: The role of the caller.
    """

    deadline: Deadline
    peer: str
    empty: ArrayAllocator = np.empty
    borrowed: bool = False
    caller: CallerRole = UNRESTRICTED


class RpcHandler(NamedTuple):
    """An rpc and the function that serves it."""

    method: Method
    serve: Callable[[Any, Call], Any]
