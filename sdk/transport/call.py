"""The call that a handler serves, and who makes it."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from gradmesh.protos.errors import Forbidden
from gradmesh.protos.frame import Array
from gradmesh.protos.method import Method
from gradmesh.protos.rpcs import ACCESS, ADMIN, MAY_REGISTER, READER
from gradmesh.sdk.transport.deadline import Deadline


@final
@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller: its role decides what it may do, its name for whom it may act.

    Args:
        role: One of `protos.rpcs.ROLES`.
        name: Name of the member; empty for a caller that is not a member.
        incarnation: Incarnation of the member.
        is_authenticated: Whether the cluster asks callers for tokens or certificate roles.
        member_role: Role of the member, e.g. "client"; empty for a caller that is not a member.
        session: The session key that it sent; to the coordinator only.
    """

    role: str = ADMIN
    name: str = ""
    incarnation: int = 0
    is_authenticated: bool = True
    member_role: str = ""
    session: bytes = field(default=b"", repr=False)

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

    def check_acts_for(self, name: str, incarnation: int) -> None:
        """Check that it is the process that a request names.

        Raises:
            Forbidden: It is another process, or not a member.
        """
        if self.is_authenticated and not self.is_process(name, incarnation):
            raise self.refuse_for(name, incarnation)

    def check_name(self, name: str) -> None:
        """Check that it is the current process of a name.

        Raises:
            Forbidden: It is another process, or not a member.
        """
        if self.is_authenticated and self.name != name:
            raise self.refuse_for(name, self.incarnation)

    def is_process(self, name: str, incarnation: int) -> bool:
        """Return whether it is the process of a name and incarnation."""
        return self.incarnation == incarnation and self.name == name and bool(name)

    def refuse_for(self, name: str, incarnation: int) -> Forbidden:
        """Return the error for acting for another process."""
        who = f"{self.name!r} (incarnation {self.incarnation})" if self.name else "not a member"
        return Forbidden(
            f"the caller is {who} and may not act for {name!r} (incarnation {incarnation}); "
            "send requests as the member that registered under the name",
            name=name,
            incarnation=incarnation,
        )

    def refuse(self, what: str) -> Forbidden:
        """Return the error for something that it may not do."""
        return Forbidden(
            f"the role {self.role!r} may not {what}; show a token or certificate of a role that "
            "may (docs/security.md has the table)",
            role=self.role,
        )


UNRESTRICTED = Caller(is_authenticated=False)
"""Every caller of a cluster that asks for neither tokens nor certificate roles."""

_current: ContextVar[Caller] = ContextVar("caller", default=UNRESTRICTED)


def current_caller() -> Caller:
    """Return the caller that this thread serves."""
    return _current.get()


def set_caller(caller: Caller) -> None:
    """Set the caller that this thread serves."""
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
            keeps one must copy it. In shared memory the client can change floats also during the
            call: a handler that checks them must copy them first.
        caller: Who makes the call.
    """

    deadline: Deadline
    peer: str
    empty: ArrayAllocator = np.empty
    borrowed: bool = False
    caller: Caller = UNRESTRICTED


class RpcHandler(NamedTuple):
    """An rpc and the function that serves it."""

    method: Method
    serve: Callable[[Any, Call], Any]
