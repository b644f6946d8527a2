"""Who takes part, and until when. Pure: time comes with each call."""

from dataclasses import dataclass
from typing import final

from gradmesh.protos.coordinator.v1 import membership_pb2 as pb
from gradmesh.protos.errors import InvalidRequest, NameTaken, NotMember
from gradmesh.protos.naming import check_name, natural_key

# Short-lived clients come and go under ever new names.
_MAX_GONE = 4096


@dataclass(slots=True)
class Lease:
    """A member and its last sign of life."""

    member: pb.Member
    seen_at: float
    open_contexts: int = 0


@final
class Members:
    """The members by name.

    Args:
        lease_s: How long a member counts as alive without a sign of life.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._leases: dict[str, Lease] = {}
        # The newest incarnation of each name that is known to be gone, the last to go last.
        self._gone: dict[str, int] = {}

    def register(self, member: pb.Member, replace: bool, now: float) -> pb.Member | None:
        """Make a process a member.

        Returns:
            The former incarnation that it replaces, if there was one.

        Raises:
            InvalidRequest: Name, role or address is missing.
            NameTaken: Another live process holds the name.
        """
        _check(member)
        held = self._leases.get(member.name)
        former = held.member if held and held.member != member else None
        if held and former:
            expires_in = max(0.0, held.seen_at + self.lease_s - now)
            # The same incarnation with another role or address is another process, too.
            newer = member.incarnation > former.incarnation
            if not newer or (expires_in > 0 and not replace):
                raise NameTaken(
                    f"{member.name!r} is held by the process at "
                    f"{former.address or 'an unknown place'}; choose another name, or end that "
                    f"process and wait {expires_in:.0f} s",
                    name=member.name,
                    address=former.address,
                    expires_in_s=f"{expires_in:.1f}",
                )
        self._leases[member.name] = Lease(member, now)
        if former is not None:
            self._bury(former)
        return former

    def renew(self, name: str, incarnation: int, now: float, open_contexts: int = 0) -> None:
        """Note a sign of life.

        Raises:
            NotMember: Nobody of that name and incarnation is a member.
        """
        held = self._lease(name, incarnation)
        held.seen_at = now
        held.open_contexts = open_contexts

    def is_gone(self, name: str, incarnation: int) -> bool:
        """Tell whether a process was a member and is none any more.

        Of one that never was, or that a former coordinator knew, nothing is said.
        """
        return incarnation <= self._gone.get(name, 0)

    def _bury(self, member: pb.Member) -> None:
        newest = max(member.incarnation, self._gone.pop(member.name, 0))
        self._gone[member.name] = newest
        if len(self._gone) > _MAX_GONE:
            del self._gone[next(iter(self._gone))]

    def leave(self, name: str, incarnation: int) -> pb.Member | None:
        """End a membership; return it, or None if there was none."""
        held = self._leases.get(name)
        if held is None or held.member.incarnation != incarnation:
            return None
        del self._leases[name]
        self._bury(held.member)
        return held.member

    def expire(self, now: float) -> list[pb.Member]:
        """End the memberships whose lease has run out; return them."""
        gone = [h.member for h in self._leases.values() if now - h.seen_at > self.lease_s]
        for member in gone:
            del self._leases[member.name]
            self._bury(member)
        return gone

    def check(self, name: str, incarnation: int) -> pb.Member:
        """Return the member.

        Raises:
            NotMember: Nobody of that name and incarnation is a member.
        """
        return self._lease(name, incarnation).member

    def has(self, name: str) -> bool:
        """Tell whether somebody of that name is a member."""
        return name in self._leases

    def of_role(self, role: pb.Role) -> list[pb.Member]:
        """Return the members with a role, by name."""
        return [held.member for held in self.leases() if held.member.role == role]

    def leases(self) -> list[Lease]:
        """Return all members with their last sign of life, by name."""
        return sorted(self._leases.values(), key=lambda held: natural_key(held.member.name))

    def _lease(self, name: str, incarnation: int) -> Lease:
        held = self._leases.get(name)
        if held is None or held.member.incarnation != incarnation:
            raise NotMember(
                f"{name!r} (incarnation {incarnation}) is no member; its lease of "
                f"{self.lease_s:g} s ran out or another process took the name: register again",
                name=name,
                incarnation=incarnation,
            )
        return held


def _check(member: pb.Member) -> None:
    check_name("worker", member.name)
    if member.role == pb.ROLE_UNSPECIFIED or member.role not in pb.Role.values():
        raise InvalidRequest(
            f"{member.name!r} has no role; say what it does: parameter server, trainer, worker or "
            "client",
            name=member.name,
        )
    if not member.address and member.role != pb.ROLE_CLIENT:
        raise InvalidRequest(
            f"{member.name!r} has no address; only clients may join without one", name=member.name
        )
    if not member.incarnation:
        raise InvalidRequest(
            f"{member.name!r} has no incarnation; send a number that grows with each start",
            name=member.name,
        )
