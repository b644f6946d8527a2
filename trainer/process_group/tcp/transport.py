"""One round of frames between this rank and its peers, all links at once.

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
from gradmesh.trainer.process_group.tcp.link import PeerLink

_LOOKS = 20
_LOOK_AGAIN_S = 0.002
_LAST_LOOK_S = 0.25


@final
class SocketTransport:
    """Moves payloads over the links of one rank. One thread only.

    Args:
        links: The peers' links by rank.
        latch: Ends a round early when it trips.
    """

    def __init__(self, links: Mapping[int, PeerLink], latch: AbortSignal) -> None:
        self._links = links
        self._latch = latch
        self._busy: list[PeerLink] = []
        self._idle: list[PeerLink] = []
        self._text = ""

    def can_begin(self) -> bool:
        """Return whether no round is under way."""
        return not self._busy

    def begin(
        self, text: str, outgoing: Mapping[int, Segments], incoming: Mapping[int, Segments]
    ) -> None:
        """Start to send `outgoing` and to expect `incoming`, both by peer rank.

        Args:
            text: The collective in words; peers must say the same.
            outgoing: What goes to each peer.
            incoming: Where each peer's bytes go.
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
        """Return whether all of `outgoing` has left."""
        return not any(link.is_sending() for link in self._busy)

    def finish(self, deadline: float) -> None:
        """Move bytes until the round is over.

        Args:
            deadline: Latest end, by time.monotonic().

        Raises:
            CollectiveTimeout: The deadline passed; names the ranks still awaited.
            PeerLost: A link broke.
            CollectiveMismatch: A peer is in another collective.
        """
        looks = 0
        while busy := [link for link in self._busy if _move(link)]:
            if len(busy) < len(self._busy):
                self._idle += [link for link in self._busy if link not in busy]
                self._busy = busy
            if looks < _LOOKS:
                # A peer that runs answers sooner than a sleep would end.
                looks += 1
                os.sched_yield()
            else:
                self._wait(self._text, busy, deadline)
            self._latch.check()
        self._busy = []

    def leave(self, kind: MessageKind, rank: int, grace_s: float) -> None:
        """Tell all peers why we leave, and close the links.

        Frames that are half sent are finished first: a peer in the middle of one would else
        only see the connection break, and blame us for what somebody else did.

        Args:
            kind: The reason.
            rank: Whom it is about.
            grace_s: How long peers may take to hear it.
        """
        deadline = time.monotonic() + grace_s
        for link in self._links.values():
            link.start_farewell(kind, rank)
        busy = list(self._links.values())
        while (busy := [link for link in busy if link.flush()]) and time.monotonic() < deadline:
            poll = select.poll()
            for link in busy:
                poll.register(link, select.POLLIN | (select.POLLOUT if link.is_sending() else 0))
            # Acknowledgements raise no event: look again soon.
            poll.poll(_LOOK_AGAIN_S * 1000)
        for link in self._links.values():
            link.close()

    def _wait(self, text: str, busy: list[PeerLink], deadline: float) -> None:
        poll = select.poll()
        poll.register(self._latch, select.POLLIN)
        for link in busy:
            # Also where nothing is expected: the peer may have to send before it can receive.
            poll.register(link, select.POLLIN | (select.POLLOUT if link.is_sending() else 0))
        for link in self._idle:
            # Whoever has given its part may still say that it leaves.
            poll.register(link, select.POLLIN)
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if self._idle:
            self._idle = [link for link in self._idle if not link.is_ahead()]
        if not ready or time.monotonic() >= deadline:
            self._listen_once_more(busy)
            raise _timed_out(text, busy)

    def _listen_once_more(self, busy: list[PeerLink]) -> None:
        """Let a peer that ran out of time just before us say for whom it waited.

        When several are silent, most wait for the same one as we do, and know it better.
        """
        end = time.monotonic() + _LAST_LOOK_S
        while len(silent := [link for link in busy if link.is_receiving()]) > 1:
            poll = select.poll()
            poll.register(self._latch, select.POLLIN)
            for link in silent:
                poll.register(link, select.POLLIN)
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                return
            self._latch.check()
            for link in silent:
                link.receive_some()


def _move(link: PeerLink) -> bool:
    """Move what can move without waiting; tell whether the link is still busy."""
    if link.is_sending():
        link.send_some()
    if link.is_receiving():
        link.receive_some()
    elif link.is_sending():
        link.receive_early()
    return link.is_sending() or link.is_receiving()


def _timed_out(text: str, busy: list[PeerLink]) -> CollectiveTimeout:
    # Silence is the better clue: a peer that still sends only waits for somebody else.
    silent = [link for link in busy if link.is_receiving()] or busy
    names = ", ".join(f"rank {link.rank} ({link.address})" for link in silent)
    return CollectiveTimeout(
        f"{text} timed out waiting for {names}; see whether it still runs, or raise the"
        " group's timeout, then rejoin",
        ranks=[link.rank for link in silent],
    )
