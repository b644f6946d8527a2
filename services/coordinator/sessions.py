"""Which member a caller is, by the session key that it sends, and the tickets of callers. Pure."""

import hmac
from collections.abc import Mapping, Sequence
from typing import final

from gradmesh.protos.common.v1 import worker_pb2
from gradmesh.protos.coordinator.v1 import membership_pb2, ticket_pb2
from gradmesh.protos.errors import Forbidden, InvalidRequest, NotMember
from gradmesh.protos.limits import MAX_TICKETS
from gradmesh.protos.ticket import SESSION_BYTES, TICKET_S, Ticket
from gradmesh.sdk.cluster.membership import role_name
from gradmesh.sdk.transport.call import Caller
from gradmesh.services.coordinator.members import MemberLease, Members


@final
class Sessions:
    """Binds callers to members.

    Without authentication every caller may act for every member, as the roles allow nothing less.

    Args:
        members: The members, with their session keys.
    """

    def __init__(self, members: Members) -> None:
        self._members = members

    def check_registration(self, request: membership_pb2.RegisterRequest, caller: Caller) -> None:
        """Check that a caller may take a name.

        Raises:
            InvalidRequest: It sent no session key.
            Forbidden: The name belongs to a process of a role that the caller may not have.
        """
        if not caller.is_authenticated:
            return
        if len(request.session) != SESSION_BYTES:
            raise InvalidRequest(
                f"{request.member.name!r} sent a session key of {len(request.session)} bytes; send "
                f"{SESSION_BYTES} random bytes, the same each time",
                name=request.member.name,
            )
        holder = self._members.role_of(request.member.name)
        if holder not in (None, membership_pb2.ROLE_CLIENT):
            caller.check_member(role_name(holder))

    def check_own(self, name: str, incarnation: int, caller: Caller) -> None:
        """Check that a caller is the member that its request names; unknown members pass.

        Raises:
            Forbidden: It is another process.
            NotMember: The member is from a version without sessions, and has to register again.
        """
        held = self._members.find(name)
        if not caller.is_authenticated or held is None:
            return
        caller.check_member(role_name(held.member.role))
        if held.member.incarnation != incarnation:
            return
        if not held.session:
            raise NotMember(f"{name!r} has no session; register again", name=name)
        if not hmac.compare_digest(held.session, caller.session):
            raise caller.refuse_for(name, incarnation)

    def check_trainer(self, joined: Mapping[str, int], caller: Caller) -> None:
        """Check that an authenticated caller is one of the trainers of the current generation.

        Args:
            joined: The incarnations of the trainers, by name.
            caller: Who sends the request.

        Raises:
            Forbidden: It is another process.
        """
        held = self._members.find_session(caller.session)
        member = held.member if held is not None else None
        if member is None or joined.get(member.name) != member.incarnation:
            raise Forbidden(
                "the caller is not a trainer of this generation; join the generation first"
            )

    def member_of(self, session: bytes) -> tuple[str, int]:
        """Return the member with a session key; an empty name if there is none.

        Called without the servicer's lock: it reads one entry, and a caller that registers
        meanwhile counts as a member from its next call on.
        """
        held = self._members.find_session(session)
        return ("", 0) if held is None else (held.member.name, held.member.incarnation)

    def issue(
        self, audiences: Sequence[str], caller: Caller, time_ms: int
    ) -> ticket_pb2.IssueTicketsResponse:
        """Return tickets for members that a caller wants to call; empty for unknown names.

        Without authentication there are none.

        Raises:
            InvalidRequest: Too many at once.
            NotMember: The caller has a session that is not registered, or not any more.
        """
        _check_count(len(audiences))
        if not caller.is_authenticated:
            return ticket_pb2.IssueTicketsResponse(is_open=True)
        held = self._members.find_session(caller.session)
        if caller.session and held is None:
            raise NotMember("the session is not registered here; register again")
        response = ticket_pb2.IssueTicketsResponse()
        for name in audiences:
            audience = self._members.find(name)
            data = b""
            if audience is not None and audience.session:
                data = _sign(audience, caller, held, time_ms)
            response.tickets.add(data=data, ttl_s=TICKET_S)
        return response

    def registered(self, workers: Sequence[worker_pb2.WorkerId]) -> list[bool]:
        """Return for each process whether it is a member, or was one.

        Raises:
            InvalidRequest: Too many at once.
        """
        _check_count(len(workers))
        return [self._members.was_registered(one.name, one.incarnation) for one in workers]


def _sign(audience: MemberLease, caller: Caller, member: MemberLease | None, time_ms: int) -> bytes:
    expires_ms = time_ms + int(TICKET_S * 1000)
    to = audience.member.name, audience.member.incarnation
    if member is None:
        return Ticket(to, caller.role, ("", 0), "", expires_ms).sign(audience.session)
    me = member.member
    ticket = Ticket(to, caller.role, (me.name, me.incarnation), role_name(me.role), expires_ms)
    return ticket.sign(audience.session)


def _check_count(count: int) -> None:
    if count > MAX_TICKETS:
        raise InvalidRequest(f"{count} names at once; send at most {MAX_TICKETS}", count=count)
