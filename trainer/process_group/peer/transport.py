"""Exchange frames between this rank and its peers, over all links at once.

Every rank sends and receives in the same poll loop, so no order of arrival can deadlock.
"""

import os
import select
import time
from collections.abc import Mapping
from typing import final

from gradmesh.trainer.errors import CollectiveTimeout
from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.collective import Segments
from gradmesh.trainer.process_group.message import MessageKind
from gradmesh.trainer.process_group.peer.link import PeerLink

_SPINS = 20
_POLL_S = 0.002
_FINAL_POLL_S = 0.25


@final
class SocketTransport:
    """Exchange payloads over the links of one rank. One thread only.

    Args:
        links: The peers' links by rank.
        abort_signal: Ends an exchange early when it is set.
    """

    def __init__(self, links: Mapping[int, PeerLink], abort_signal: AbortSignal) -> None:
        self._links = links
        self._abort_signal = abort_signal
        self._busy: list[PeerLink] = []
        self._idle: list[PeerLink] = []
        self._text = ""

    def is_idle(self) -> bool:
        """Return whether no exchange is under way."""
        return not self._busy

    def begin(
        self, text: str, outgoing: Mapping[int, Segments], incoming: Mapping[int, Segments]
    ) -> None:
        """Start to send `outgoing` and to expect `incoming`, both by peer rank.

        Args:
            text: The collective in words; peers must pass the same.
            outgoing: The bytes for each peer.
            incoming: The memory for each peer's bytes.
        """
        self._text = text
        for rank, parts in outgoing.items():
            self._links[rank].start_send(text, parts)
        for rank, parts in incoming.items():
            self._links[rank].start_receive(text, parts)
        self._busy = [self._links[rank] for rank in {**outgoing, **incoming}]
        self._idle = []
        for link in self._busy:
            link.send_some()

    def has_sent(self) -> bool:
        """Return whether all of `outgoing` has been sent."""
        return not any(link.is_sending() for link in self._busy)

    def finish(self, deadline: float) -> None:
        """Move bytes until the exchange has finished.

        Args:
            deadline: Latest end, by time.monotonic().

        Raises:
            CollectiveTimeout: The deadline passed; names the missing ranks.
            PeerLost: A link broke.
            CollectiveMismatch: A peer is in another collective.
        """
        spins = 0
        while busy := [link for link in self._busy if _move(link)]:
            if len(busy) < len(self._busy):
                self._idle += [link for link in self._busy if link not in busy]
                self._busy = busy
            if spins < _SPINS:
                # Spin first: a running peer answers sooner than a sleep would end.
                spins += 1
                os.sched_yield()
            else:
                self._wait(self._text, busy, deadline)
            self._abort_signal.raise_if_set()
        self._busy = []

    def leave(self, kind: MessageKind, rank: int, grace_s: float) -> None:
        """Send all peers a shutdown message, and close the links.

        Frames that are partly sent are completed first: otherwise a peer would only see the
        connection break, and blame this rank for the failure of another one.

        Args:
            kind: The reason.
            rank: The rank it is about.
            grace_s: Longest time to wait until the peers have received it.
        """
        deadline = time.monotonic() + grace_s
        for link in self._links.values():
            link.start_shutdown(kind, rank)
        busy = list(self._links.values())
        while (busy := [link for link in busy if link.flush()]) and time.monotonic() < deadline:
            poll = select.poll()
            for link in busy:
                poll.register(link, select.POLLIN | (select.POLLOUT if link.is_sending() else 0))
            # Acknowledgements raise no event: poll again soon.
            poll.poll(_POLL_S * 1000)
        for link in self._links.values():
            link.close()

    def _wait(self, text: str, busy: list[PeerLink], deadline: float) -> None:
        poll = select.poll()
        poll.register(self._abort_signal, select.POLLIN)
        for link in busy:
            # Also if nothing is expected: the peer may have to send before it can receive.
            poll.register(link, select.POLLIN | (select.POLLOUT if link.is_sending() else 0))
        for link in self._idle:
            # A peer that has finished its part may still send a shutdown message.
            poll.register(link, select.POLLIN)
        pending = any(link.has_pending() for link in (*busy, *self._idle))
        wait_s = 0.0 if pending else max(0.0, deadline - time.monotonic())
        ready = poll.poll(wait_s * 1000) or pending
        if self._idle:
            self._idle = [link for link in self._idle if not link.has_unexpected_data()]
        if not ready or time.monotonic() >= deadline:
            self._poll_once_more(busy)
            raise _timed_out(text, busy)

    def _poll_once_more(self, busy: list[PeerLink]) -> None:
        """Wait shortly for the shutdown message of a peer that timed out just before this rank.

        If several peers are silent, most of them wait for the same one, and some can name it.
        """
        end = time.monotonic() + _FINAL_POLL_S
        while len(silent := [link for link in busy if link.is_receiving()]) > 1:
            poll = select.poll()
            poll.register(self._abort_signal, select.POLLIN)
            for link in silent:
                poll.register(link, select.POLLIN)
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                return
            self._abort_signal.raise_if_set()
            for link in silent:
                link.receive_some()


def _move(link: PeerLink) -> bool:
    """Send and receive without blocking; return whether the link is still busy."""
    if link.is_sending():
        link.send_some()
    if link.is_receiving():
        link.receive_some()
    elif link.is_sending():
        link.receive_early()
    return link.is_sending() or link.is_receiving()


def _timed_out(text: str, busy: list[PeerLink]) -> CollectiveTimeout:
    # Blame silent peers first: one that still sends only waits for another rank.
    silent = [link for link in busy if link.is_receiving()] or busy
    names = ", ".join(f"rank {link.rank} ({link.address})" for link in silent)
    return CollectiveTimeout(
        f"{text} timed out waiting for {names}; see whether it still runs, or raise the"
        " group's timeout, then rejoin",
        ranks=[link.rank for link in silent],
    )
