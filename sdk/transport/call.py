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
    """A caller that was let in.

    Args:
        role: What it may do.
    """

    role: str = ADMIN

    @property
    def only_reads(self) -> bool:
        """Whether nothing may change on its behalf."""
        return self.role == READER

    def check(self, path: str) -> None:
        """Return if it may call an rpc.

        Raises:
            Forbidden: Its role may not.
        """
        # What is in no table is for those who may do everything.
        if self.role != ADMIN and self.role not in ACCESS.get(path.removeprefix("/"), ()):
            raise self.refuse(f"call {path.rpartition('/')[2]}")

    def check_member(self, role: str) -> None:
        """Return if it may become a member of a role.

        Raises:
            Forbidden: It may not.
        """
        if self.role != ADMIN and role not in MAY_REGISTER[self.role]:
            raise self.refuse(f"be a {role or 'member without a role'}, or speak for one")

    def refuse(self, what: str) -> Forbidden:
        """Return the error about something that it may not do."""
        return Forbidden(
            f"the role {self.role!r} may not {what}; show a token or certificate of a role that "
            "may (docs/operations.md has the table)",
            role=self.role,
        )


UNRESTRICTED = CallerRole()
"""Who calls where nobody is asked for a role."""

_current: ContextVar[CallerRole] = ContextVar("caller", default=UNRESTRICTED)


def current_caller() -> CallerRole:
    """Return who made the call that this thread serves."""
    return _current.get()


def set_caller(caller: CallerRole) -> None:
    """Say who made the call that this thread serves from now on."""
    _current.set(caller)


MAX_CALL_S = 600.0
"""Deadline of a call whose caller set none: nothing waits for ever."""

ArrayAllocator: TypeAlias = Callable[[tuple[int, ...], Any], Array]
"""Returns memory for an array, given its shape and type."""


@dataclass(slots=True, eq=False)
class Call:
    """What a handler may know about the call it serves.

    Args:
        deadline: When the caller stops waiting.
        peer: Where the call comes from.
        empty: Returns memory for an array of the response; on a lane, memory that is sent as it is.
        borrowed: Whether the request's arrays are gone when the handler returns; a handler that
            keeps one must copy it then.
        caller: Who calls.
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
