"""Membership and leases. Pure: each call carries the time.

A restarted coordinator reads the former members from its journal. Each is a member again with its
next heartbeat, and lost if it sends none for the duration of a lease.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast, final

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import membership_pb2 as pb
from gradmesh.protos.errors import InvalidRequest, NameTaken, NotMember
from gradmesh.protos.limits import check_address, check_name, natural_key
from gradmesh.services.coordinator.journal import Journal, NameRecord, Tombstone

# Bounds the tombstones of a role: short-lived clients use a new name each time.
_MAX_GONE = 4096

# A member sends a heartbeat each second, or three times in a lease that is shorter than that.
_ACTIVE_S = 3.0

MAX_AHEAD_S = 300
"""How far the clock of a process may be ahead of the coordinator's; its incarnation is the time."""


@dataclass(slots=True)
class MemberLease:
    """A member and the time of its last heartbeat."""

    member: pb.Member
    seen_at: float
    contexts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Number of contexts open on it, by name and incarnation of their opener."""
    session: bytes = field(default=b"", repr=False)
    """Its session key; empty for one that sent none."""


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
        self._former: dict[str, MemberLease] = {}
        self._former_until: float | None = None
        # Tombstones: the newest process of each name that ended, the latest last.
        self._gone: dict[str, Tombstone] = {}
        self._by_session: dict[bytes, str] = {}
        for name, record in journal.members():
            if record.member is not None:
                self._former[name] = MemberLease(record.member, 0.0, session=record.session)
                self._by_session[record.session] = name
            if record.gone is not None:
                self._gone[name] = record.gone

    def register(
        self,
        member: pb.Member,
        replace: bool,
        now: float,
        *,
        session: bytes = b"",
        newest_ns: int | None = None,
    ) -> pb.Member | None:
        """Make a process a member.

        Args:
            member: The process.
            replace: Whether the former holder of the name is known to be gone.
            now: The time.
            session: Its session key.
            newest_ns: The greatest incarnation that a process can have by now; None for no limit.

        Returns:
            The former incarnation that it replaces, if any.

        Raises:
            InvalidRequest: Name, role or address is missing, or the incarnation is in the future.
            NameTaken: Another live process holds the name.
        """
        _check(member)
        if session and self._by_session.get(session, member.name) != member.name:
            raise InvalidRequest(f"{member.name!r} sent the session key of another member")
        held = self._held(member.name)
        if held is None or held.member.role != member.role:
            self._check_room(member.role)
        if held is None or held.member != member:
            _check_time(member, newest_ns)
            self._drop_invalid_tombstone(member, newest_ns)
        former = held.member if held is not None and held.member != member else None
        expires_in = self._expires_in(member.name, now) if former else 0.0
        may_replace = former is not None and (
            _yields(former.role, member.role)
            or (
                replace and former.role == member.role and not self._is_active(former, session, now)
            )
        )
        is_stolen = not self._is_own_session(member, session)
        is_older = self._is_older(member, former, newest_ns)
        if is_stolen or is_older or (expires_in > 0 and not may_replace):
            raise _taken(member, held.member if held is not None else None, expires_in)
        is_new = held is None or held.session != session
        if held is not None:
            self._by_session.pop(held.session, None)
        self._leases[member.name] = MemberLease(member, now, session=session)
        self._by_session[session] = member.name
        self._former.pop(member.name, None)
        if former is not None and held is not None and former.incarnation < member.incarnation:
            self._add_tombstone(former, held.session)
        elif is_new or former is not None:
            self._save(member.name)
        return former

    def _is_own_session(self, member: pb.Member, session: bytes) -> bool:
        """Return whether a known process of this name and incarnation has this session, too."""
        if not session:
            return True  # without authentication, which a session of before may have had
        held, gone = self._held(member.name), self._gone.get(member.name)
        known = []
        if held is not None and held.member.incarnation == member.incarnation:
            known.append(held.session)
        if gone is not None and gone.incarnation == member.incarnation:
            known.append(gone.session)
        return all(not one or hmac.compare_digest(one, session) for one in known)

    def _is_active(self, former: pb.Member, session: bytes, now: float) -> bool:
        """Return whether an authenticated client has sent a heartbeat a moment ago.

        Any client could end another one otherwise. Servers, trainers and workers are replaced at
        once, because a supervisor that restarts one knows that it has ended.
        """
        held = self._leases.get(former.name)
        is_client = bool(session) and former.role == pb.ROLE_CLIENT
        return is_client and held is not None and now - held.seen_at < _ACTIVE_S

    def _is_older(self, member: pb.Member, former: pb.Member | None, newest_ns: int | None) -> bool:
        """Return whether the name was held by a newer process, or another one of this incarnation.

        The same incarnation with another role or address is another process, too.
        """
        gone = self._gone.get(member.name)
        if gone is not None and member.incarnation < gone.incarnation:
            return True
        if former is None or (newest_ns is not None and former.incarnation > newest_ns):
            return False
        return member.incarnation <= former.incarnation and not _yields(former.role, member.role)

    def _drop_invalid_tombstone(self, member: pb.Member, newest_ns: int | None) -> None:
        """Drop a tombstone that would lock a process out of its name.

        It is of an incarnation that no process can have had, or of a newer client.
        """
        gone = self._gone.get(member.name)
        if gone is None or gone.incarnation <= member.incarnation:
            return
        is_future = newest_ns is not None and gone.incarnation > newest_ns
        if is_future or _yields(gone.role, member.role):
            del self._gone[member.name]
            self._save(member.name)

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
        came_back = former is not None and former.member.incarnation == incarnation
        if came_back:
            self._leases[name] = self._former.pop(name)
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
        gone = self._gone.get(name)
        return gone is not None and incarnation <= gone.incarnation

    def was_registered(self, name: str, incarnation: int) -> bool:
        """Return whether a process is a member or was one."""
        member = self._member(name)
        is_member = member is not None and member.incarnation == incarnation
        return is_member or self.is_gone(name, incarnation)

    def _add_tombstone(self, member: pb.Member, session: bytes) -> None:
        """Record that a member ended; called after its successor, if any, is a member."""
        older = self._gone.pop(member.name, None)
        gone = Tombstone(member.incarnation, member.role, session)
        if older is not None and older.incarnation > member.incarnation:
            gone = older
        self._gone[member.name] = gone
        self._save(member.name)
        self._bound_tombstones(member)

    def _bound_tombstones(self, newest: pb.Member) -> None:
        """Drop the oldest tombstone of a role that has too many.

        Each role has its own, so that short-lived clients do not drop those of lost trainers.
        """
        if len(self._gone) <= _MAX_GONE:
            return
        same = [name for name, gone in self._gone.items() if gone.role == newest.role]
        if len(same) > _MAX_GONE:
            del self._gone[same[0]]
            self._save(same[0])

    def _save(self, name: str) -> None:
        """Write the state of a name to the journal."""
        held = self._held(name)
        gone = self._gone.get(name)
        if held is not None:
            self._journal.set_member(name, NameRecord(held.member, held.session, gone))
        elif gone is not None:
            self._journal.set_member(name, NameRecord(None, b"", gone))
        else:
            self._journal.remove_member(name)

    def _held(self, name: str) -> MemberLease | None:
        return self._leases.get(name) or self._former.get(name)

    def _member(self, name: str) -> pb.Member | None:
        held = self._held(name)
        return held.member if held is not None else None

    def find(self, name: str) -> MemberLease | None:
        """Return the lease of the process that holds a name, former members included."""
        return self._held(name)

    def find_session(self, session: bytes) -> MemberLease | None:
        """Return the lease with a session key, former members included."""
        name = self._by_session.get(session) if session else None
        return None if name is None else self._held(name)

    def leave(self, name: str, incarnation: int) -> pb.Member | None:
        """End a membership; return the member, or None if it was not one."""
        member = self._member(name)
        if member is None or member.incarnation != incarnation:
            return None
        self._end(member)
        return member

    def _end(self, member: pb.Member) -> None:
        held = self._leases.pop(member.name, None) or self._former.pop(member.name, None)
        session = held.session if held is not None else b""
        self._by_session.pop(session, None)
        self._add_tombstone(member, session)

    def expire(self, now: float) -> list[pb.Member]:
        """End the memberships whose lease has run out; return them."""
        gone = [h.member for h in self._leases.values() if now - h.seen_at > self.lease_s]
        if self._former_until is None:
            self._former_until = now + self.lease_s
        if now > self._former_until:
            gone += [held.member for held in self._former.values()]
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
        """Return the role of the process that holds a name, or held it last; None if unknown."""
        member = self._member(name)
        if member is not None:
            return member.role
        gone = self._gone.get(name)
        return None if gone is None or not gone.role else cast(pb.Role, gone.role)

    def of_role(self, role: pb.Role) -> list[pb.Member]:
        """Return the members with a role, by name."""
        found = [held.member for held in self._leases.values() if held.member.role == role]
        return sorted(found, key=lambda member: natural_key(member.name))

    def known_of_role(self, role: pb.Role) -> list[pb.Member]:
        """Return the members with a role, former members included."""
        former = [held.member for held in self._former.values() if held.member.role == role]
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
        names = (*self._leases, *self._former)
        held = {name: self._held(name) for name in names}
        stored = dict(self._journal.members())
        assert {n: r.gone for n, r in stored.items() if r.gone is not None} == self._gone
        assert {n for n, r in stored.items() if r.member is not None} == held.keys()
        for name, lease in held.items():
            assert lease is not None
            assert stored[name][:2] == (lease.member, lease.session)
            assert (
                name not in self._gone or lease.member.incarnation >= self._gone[name].incarnation
            )
            assert not lease.session or self.find_session(lease.session) is lease

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


def _yields(holder: int, role: int) -> bool:
    """Return whether a name goes to a process of a role, whatever incarnation the holder had.

    A client yields to all others, so that it cannot keep the name of a server, trainer or worker.
    """
    return holder == pb.ROLE_CLIENT != role


def _check_time(member: pb.Member, newest_ns: int | None) -> None:
    if newest_ns is not None and member.incarnation > newest_ns:
        raise InvalidRequest(
            f"{member.name!r} has the incarnation {member.incarnation}, which is more than "
            f"{MAX_AHEAD_S // 60} minutes ahead of the coordinator's clock; set the clocks of both "
            "hosts",
            name=member.name,
            incarnation=member.incarnation,
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
    if member.address:
        check_address(member.address)
    if not member.incarnation:
        raise InvalidRequest(
            f"{member.name!r} has no incarnation; send a number that grows with each start",
            name=member.name,
        )
