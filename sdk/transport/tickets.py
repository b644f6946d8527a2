"""The tickets that a process shows to other members, and the metadata of its calls."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, final

from gradmesh.protos.errors import (
    DeadlineExceeded,
    MeshError,
    NotMember,
    TicketRejected,
    Unreachable,
)
from gradmesh.protos.limits import MAX_TICKETS
from gradmesh.protos.ticket import TICKET_METADATA
from gradmesh.sdk.transport.deadline import Deadline

_log = logging.getLogger(__name__)

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]
"""Names and values that accompany a call."""

IssueTickets: TypeAlias = Callable[[Sequence[str], Deadline], Sequence[tuple[bytes, float]] | None]
"""Asks the coordinator for tickets; returns each with its lifetime, empty for an unknown name, or
None if the cluster needs none."""

# A ticket is renewed from this share of its lifetime on, and used until its end: an outage of the
# coordinator in between is not noticed.
_RENEW_AFTER = 1 / 3
_RENEW_CALL_S = 5.0
_FETCH_S = 10.0
_RENEW_PAUSE_S = 10.0
# Tickets are small; more audiences than this are asked for again when they are called.
_MAX_HELD = 4096


class CallCredentials(Protocol):
    """What a channel shows to its server with each attempt of a call."""

    def metadata(self, timeout_s: float) -> Metadata:
        """Return the metadata of an attempt.

        Raises:
            MeshError: There is none to be had in time.
        """

    def renew(self) -> None:
        """Replace what was shown: the server rejected it."""


@final
class FixedCredentials:
    """Credentials that stay the same, for a configured address.

    Args:
        metadata: Sent with every call.
    """

    def __init__(self, metadata: Metadata = ()) -> None:
        self._metadata = metadata

    def metadata(self, timeout_s: float) -> Metadata:
        """Return the metadata."""
        return self._metadata

    def renew(self) -> None:
        """Do nothing."""


class _Held(NamedTuple):
    ticket: bytes
    renew_at: float
    until: float


@final
class TicketSource:
    """The tickets of one process, one for each member that it calls.

    Args:
        is_needed: Whether members are known to require tickets. Otherwise none are shown until a
            member rejects a call for that reason, so that an open cluster pays nothing.
        clock: Monotonic seconds, replaced in tests.
    """

    def __init__(self, is_needed: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_needed = is_needed
        self._clock = clock
        self._issue: IssueTickets | None = None
        # One request at a time; audiences that are wanted meanwhile go into the next one together.
        self._asking = threading.Lock()
        self._lock = threading.Lock()  # guards all below; single reads of _held need none
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._wanted: dict[str, None] = {}
        self._renew_at = 0.0

    def join(self, issue: IssueTickets) -> None:
        """Ask a coordinator from now on."""
        self._issue = issue

    def ticket(self, audience: str, timeout_s: float) -> bytes | None:
        """Return a ticket for a member; None as long as members require none.

        Raises:
            Unreachable: No member has that name.
            MeshError: The coordinator refused, or did not answer in time.
        """
        if not self._is_needed:
            return None
        held = self._held.get(audience)
        now = self._clock()
        if held is not None and now < held.until:
            if now >= held.renew_at:
                self._renew_later(now)
            return held.ticket
        # One request at a time: a coordinator that hangs must not hold up the others for long.
        return self._fetch(audience, Deadline.after(min(timeout_s, _FETCH_S)))

    def reject(self, audience: str, shown: bytes | None) -> None:
        """Drop the ticket that a member rejected, unless there is a newer one."""
        with self._lock:
            self._is_needed = True
            held = self._held.get(audience)
            if held is not None and held.ticket == shown:
                del self._held[audience]

    def _fetch(self, audience: str, deadline: Deadline) -> bytes | None:
        with self._lock:
            self._wanted[audience] = None
        if not self._asking.acquire(timeout=deadline.remaining_s()):
            raise DeadlineExceeded(f"no ticket for {audience!r} came in time")
        try:
            held = self._held.get(audience)
            if held is None or self._clock() >= held.until:
                with self._lock:
                    wanted = [audience, *(name for name in self._wanted if name != audience)]
                    del wanted[MAX_TICKETS:]
                    for name in wanted:
                        self._wanted.pop(name, None)
                self._ask(wanted, deadline)
                held = self._held.get(audience)
        finally:
            self._asking.release()
        if not self._is_needed:
            return None
        if held is None:
            raise Unreachable(
                f"no member is named {audience!r}, so there is no ticket for it; it may have left",
                worker=audience,
            )
        return held.ticket

    def _ask(self, audiences: Sequence[str], deadline: Deadline) -> None:
        if self._issue is None:
            raise TicketRejected("this process has not joined a mesh and has no tickets; connect")
        try:
            issued = self._issue(audiences, deadline)
        except NotMember as error:
            # The coordinator restarted; the lease registers this process again within seconds.
            raise TicketRejected(error.message, **error.metadata) from error
        if issued is None:
            self._is_needed = False
            return
        now = self._clock()
        with self._lock:
            for audience, (ticket, ttl_s) in zip(audiences, issued, strict=False):
                self._held.pop(audience, None)
                if ticket:
                    self._held[audience] = _Held(ticket, now + ttl_s * _RENEW_AFTER, now + ttl_s)
            while len(self._held) > _MAX_HELD:
                self._held.popitem(last=False)

    def _renew_later(self, now: float) -> None:
        """Replace old tickets on a thread of its own; a call does not wait for it."""
        with self._lock:
            if now < self._renew_at:
                return
            self._renew_at = now + _RENEW_PAUSE_S
            due = [name for name, held in self._held.items() if held.renew_at <= now]
        threading.Thread(
            target=self._renew, args=(due[:MAX_TICKETS],), name="tickets", daemon=True
        ).start()

    def _renew(self, audiences: Sequence[str]) -> None:
        deadline = Deadline.after(_RENEW_CALL_S)
        if not self._asking.acquire(timeout=_RENEW_CALL_S):
            return
        try:
            self._ask(audiences, deadline)
        except MeshError as error:
            _log.warning("tickets not renewed", extra={"error": error.message})
        finally:
            self._asking.release()


@final
class TicketCredentials:
    """Shows tickets for one member.

    Args:
        tickets: The tickets of this process.
        audience: Name of the member.
    """

    def __init__(self, tickets: TicketSource, audience: str) -> None:
        self._tickets = tickets
        self._audience = audience
        self._shown: bytes | None = None

    def metadata(self, timeout_s: float) -> Metadata:
        """Return the ticket, if members require one."""
        shown = self._shown = self._tickets.ticket(self._audience, timeout_s)
        return () if shown is None else ((TICKET_METADATA, shown),)

    def renew(self) -> None:
        """Drop the ticket that was shown."""
        self._tickets.reject(self._audience, self._shown)
