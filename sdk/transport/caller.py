"""Who calls: what its token and its certificate let it do."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import final

from gradmesh.protos.access import ACCESS, ADMIN, MAY_REGISTER, READER
from gradmesh.protos.errors import Forbidden


@final
@dataclass(frozen=True, slots=True)
class Caller:
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


ANYBODY = Caller()
"""Who calls where nobody is asked for a role."""

_current: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


def current_caller() -> Caller:
    """Return who made the call that this thread serves."""
    return _current.get()


def set_caller(caller: Caller) -> None:
    """Say who made the call that this thread serves from now on."""
    _current.set(caller)
