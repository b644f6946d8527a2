"""Membership and leases. Pure: each call carries the time.

A restarted coordinator reads the former members from its journal. Each is a member again with its
next heartbeat, and lost if it sends none for the duration of a lease.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import final

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import membership_pb2 as pb
from gradmesh.protos.errors import InvalidRequest, NameTaken, NotMember
from gradmesh.protos.limits import check_name, natural_key
from gradmesh.services.coordinator.journal import Journal

# Bounds the tombstones of a role: short-lived clients use a new name each time.
_MAX_GONE = 4096


@dataclass(slots=True)
class MemberLease:
    """A member and the time of its last heartbeat."""

    member: pb.Member
    seen_at: float
    contexts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Number of contexts open on it, by name and incarnation of their opener."""


@final
class Members:
    """The members by name.

    Args:
        lease_s: How long a member counts as alive without a heartbeat.
        journal: Where members are stored.
    """

    def __init__(self, lease_s: float, journal: Journal) -> None:
        self.lease_s = lease_s
        self._journal = journal
        self._leases: dict[str, MemberLease] = {}
        # Members of the journal without a heartbeat since the restart, and how long to wait.
        self._former: dict[str, pb.Member] = {}
        self._former_until: float | None = None
        # Tombstones: the newest incarnation of each name that ended, the latest last.
        self._gone: dict[str, int] = {}
        # Of those from before a restart the role is not known; they count as one of their own.
        self._gone_roles: dict[str, pb.Role] = {}
        for name, member, gone in journal.members():
            if member is not None:
                self._former[name] = member
            if gone:
                self._gone[name] = gone

    def register(self, member: pb.Member, replace: bool, now: float) -> pb.Member | None:
        """Make a process a member.

        Returns:
            The former incarnation that it replaces, if any.

        Raises:
            InvalidRequest: Name, role or address is missing.
            NameTaken: Another live process holds the name.
        """
        _check(member)
        held = self._member(member.name)
        if held is None or held.role != member.role:
            self._check_room(member.role)
        former = held if held != member else None
        newest = max(self._gone.get(member.name, 0), former.incarnation if former else 0)
        expires_in = self._expires_in(member.name, now) if former else 0.0
        # The same incarnation with another role or address is another process, too.
        is_older = member.incarnation < newest or (former and member.incarnation == newest)
        if is_older or (expires_in > 0 and not replace):
            raise _taken(member, former, expires_in)
        self._leases[member.name] = MemberLease(member, now)
        self._former.pop(member.name, None)
        if former is not None:
            self._add_tombstone(former)
        elif held is None:
            self._save(member.name)
        return former

    def _check_room(self, role: pb.Role) -> None:
        """Check that one more process may be a member of a role.

        Raises:
            LimitExceeded: There are too many of them.
        """
        if len(self._leases) + len(self._former) >= limits.MEMBERS.total:
            limits.MEMBERS.check(len(self.known_of_role(role)))

    def _expires_in(self, name: str, now: float) -> float:
        """Return how long a name stays reserved for the process that holds it."""
        held = self._leases.get(name)
        if held is not None:
            return max(0.0, held.seen_at + self.lease_s - now)
        return self.lease_s if self._former_until is None else max(0.0, self._former_until - now)

    def renew(
        self,
        name: str,
        incarnation: int,
        now: float,
        contexts: Mapping[tuple[str, int], int] | None = None,
    ) -> bool:
        """Record a heartbeat, and the number of contexts open on the member by opener.

        Returns:
            Whether it is the first heartbeat of a former member since the coordinator restarted.

        Raises:
            NotMember: No member has this name and incarnation.
        """
        former = self._former.get(name)
        came_back = former is not None and former.incarnation == incarnation
        if came_back:
            self._leases[name] = MemberLease(self._former.pop(name), now)
        held = self._lease(name, incarnation)
        held.seen_at = now
        held.contexts = contexts or {}
        return came_back

    def is_gone(self, name: str, incarnation: int) -> bool:
        """Return whether a process was a member and is not any more.

        False for a process that never was a member.
        """
        member = self._member(name)
        if member is not None and member.incarnation == incarnation:
            return False  # its lease ran out, and it registered again
        return incarnation <= self._gone.get(name, 0)

    def _add_tombstone(self, member: pb.Member) -> None:
        """Record that a member ended; called after its successor, if any, is a member."""
        newest = max(member.incarnation, self._gone.pop(member.name, 0))
        self._gone[member.name] = newest
        self._save(member.name)
        self._bound_tombstones(member)

    def _bound_tombstones(self, newest: pb.Member) -> None:
        """Drop the oldest tombstone of a role that has too many.

        Each role has its own, so that short-lived clients do not drop those of lost trainers.
        """
        self._gone_roles[newest.name] = newest.role
        if len(self._gone) <= _MAX_GONE:
            return
        same = [name for name in self._gone if self._gone_roles.get(name) == newest.role]
        if len(same) > _MAX_GONE:
            del self._gone[same[0]], self._gone_roles[same[0]]
            self._save(same[0])

    def _save(self, name: str) -> None:
        """Write the state of a name to the journal."""
        member = self._member(name)
        if member is None and name not in self._gone:
            self._journal.remove_member(name)
        else:
            self._journal.set_member(name, member, self._gone.get(name, 0))

    def _member(self, name: str) -> pb.Member | None:
        held = self._leases.get(name)
        return held.member if held is not None else self._former.get(name)

    def leave(self, name: str, incarnation: int) -> pb.Member | None:
        """End a membership; return the member, or None if it was not one."""
        member = self._member(name)
        if member is None or member.incarnation != incarnation:
            return None
        self._end(member)
        return member

    def _end(self, member: pb.Member) -> None:
        self._leases.pop(member.name, None)
        self._former.pop(member.name, None)
        self._add_tombstone(member)

    def expire(self, now: float) -> list[pb.Member]:
        """End the memberships whose lease has run out; return them."""
        gone = [h.member for h in self._leases.values() if now - h.seen_at > self.lease_s]
        if self._former_until is None:
            self._former_until = now + self.lease_s
        if now > self._former_until:
            gone += self._former.values()
        for member in gone:
            self._end(member)
        return gone

    def check(self, name: str, incarnation: int) -> pb.Member:
        """Return the member.

        Raises:
            NotMember: No member has this name and incarnation.
        """
        return self._lease(name, incarnation).member

    def has(self, name: str) -> bool:
        """Return whether a member has this name."""
        return name in self._leases

    def role_of(self, name: str) -> pb.Role | None:
        """Return the role of the process that holds a name, former members included."""
        member = self._member(name)
        return None if member is None else member.role

    def of_role(self, role: pb.Role) -> list[pb.Member]:
        """Return the members with a role, by name."""
        found = [held.member for held in self._leases.values() if held.member.role == role]
        return sorted(found, key=lambda member: natural_key(member.name))

    def known_of_role(self, role: pb.Role) -> list[pb.Member]:
        """Return the members with a role, former members included."""
        former = [member for member in self._former.values() if member.role == role]
        return [*self.of_role(role), *former]

    def leases(self) -> list[MemberLease]:
        """Return the leases of all members, by name."""
        return sorted(self._leases.values(), key=lambda held: order(held.member.name))

    def check_invariants(self) -> None:
        """Check that the members are consistent and in the journal; for tests.

        Raises:
            AssertionError: An invariant is violated.
        """
        assert not self._leases.keys() & self._former.keys()
        held = {name: self._member(name) for name in (*self._leases, *self._former)}
        kept = {name: member for name, member, _ in self._journal.members() if member is not None}
        assert kept == held
        gone = {name: number for name, _, number in self._journal.members() if number}
        assert gone == self._gone
        for name, member in held.items():
            assert member is not None
            assert member.incarnation >= self._gone.get(name, 0)

    def _lease(self, name: str, incarnation: int) -> MemberLease:
        held = self._leases.get(name)
        if held is None or held.member.incarnation != incarnation:
            raise NotMember(
                f"{name!r} (incarnation {incarnation}) is not a member; its lease of "
                f"{self.lease_s:g} s ran out or another process took the name: register again",
                name=name,
                incarnation=incarnation,
            )
        return held


@lru_cache(maxsize=2 * limits.MEMBERS.total)
def order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return the sort key of members: by the numbers in their names, and without equal keys."""
    return natural_key(name), name


def _taken(member: pb.Member, former: pb.Member | None, expires_in: float) -> NameTaken:
    if former is None:
        why = f"{member.name!r} was held by a newer process; choose another name, or start again"
    else:
        why = (
            f"{member.name!r} is held by the process at {former.address or 'an unknown address'}; "
            f"choose another name, or end that process and wait {expires_in:.0f} s"
        )
    return NameTaken(
        why,
        name=member.name,
        address=former.address if former is not None else "",
        expires_in_s=f"{expires_in:.1f}",
    )


def _check(member: pb.Member) -> None:
    check_name("worker", member.name)
    if member.role == pb.ROLE_UNSPECIFIED or member.role not in pb.Role.values():
        raise InvalidRequest(
            f"{member.name!r} has no role; set it to parameter server, trainer, worker or client",
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
