"""Targets `tcp`, `shm` and `stream`: frames on lanes, and the handshakes that open them."""

from __future__ import annotations

import random
from typing import ClassVar

from gradmesh.protos.errors import InvalidFrame
from gradmesh.protos.lane import SUCCEEDED
from gradmesh.protos.rpcs import READER
from gradmesh.sdk.transport.boundary import from_bytes
from tests.fuzz.answers import OK, problem_with
from tests.fuzz.batch import Batch, Finding
from tests.fuzz.cluster import FuzzCluster
from tests.fuzz.cluster_target import ClusterTarget
from tests.fuzz.lane_connections import Answer, LaneConnection, SocketLane, StreamLane
from tests.fuzz.lane_frames import LaneFrame, LaneFrameMaker
from tests.fuzz.lane_handshakes import try_handshake
from tests.fuzz.rpc_frames import SERVER

_ANSWER_S = 60.0
_HANDSHAKES = 0.02
_CALLERS = ("client", "trainer", "worker", "parameter-server", "client", READER)


class LaneTarget(ClusterTarget):
    """Keeps a connection of each caller, and a frame under way on each of them."""

    kind: ClassVar[str]

    def __init__(self, cluster: FuzzCluster) -> None:
        super().__init__(cluster)
        self._open: dict[int, LaneConnection] = {}

    def send(self, chance: random.Random, batch: Batch) -> None:
        """Send frames on all connections, then read all answers."""
        makers = {caller: self.lane_maker(chance, caller) for caller in _CALLERS}
        while batch.frames < self.frames:
            sent = {}
            for slot, caller in enumerate(_CALLERS):
                frame = makers[caller].make()
                self._send(chance, slot, frame)
                sent[slot] = frame
            for slot, frame in sent.items():
                self._finish(slot, frame, batch)
            if self.kind != "stream" and chance.random() < _HANDSHAKES * len(_CALLERS):
                self._shake_hands(chance, batch)

    def lane_maker(self, chance: random.Random, caller: str) -> LaneFrameMaker:
        """Return what draws the frames of a caller."""
        return LaneFrameMaker(self.maker(chance, caller))

    def _send(self, chance: random.Random, slot: int, frame: LaneFrame) -> None:
        connection = self._open.get(slot) or self._connect(chance, slot)
        try:
            connection.send(frame)
        except OSError:
            # The server closed it after the frame before, as it may.
            connection.close()
            connection = self._connect(chance, slot)
            connection.send(frame)
        if not frame.is_whole:
            connection.finish()

    def _connect(self, chance: random.Random, slot: int) -> LaneConnection:
        channel = self.cluster.caller(_CALLERS[slot]).channel(SERVER)
        made: LaneConnection
        if self.kind == "stream":
            made = StreamLane(channel, chance.choice((1, 1, 1, 2, 7)))
        else:
            made = SocketLane(channel, self.kind)
        self._open[slot] = made
        return made

    def _finish(self, slot: int, frame: LaneFrame, batch: Batch) -> None:
        """Read the answer to a frame and judge it."""
        connection = self._open[slot]
        batch.frames += 1
        answer: Answer | None = None
        problem: str | None = None
        try:
            answer = connection.receive(_ANSWER_S)
        except TimeoutError:
            problem = f"no answer on the lane {self.kind} within {_ANSWER_S:.0f} s"
        except InvalidFrame as error:
            problem = str(error)
        if answer is not None:
            problem = self._judge(slot, frame, answer, batch)
        elif frame.is_whole and problem is None:
            problem = f"the lane {self.kind} is closed without an answer"
        if problem is not None:
            batch.findings.append(Finding(problem, frame.inline))
        if answer is None or answer[1] == 0 or not frame.is_whole:
            connection.close()
            del self._open[slot]

    def _judge(self, slot: int, frame: LaneFrame, answer: Answer, batch: Batch) -> str | None:
        outcome, call, head = answer
        reason, text = OK, ""
        if outcome != SUCCEEDED:
            error = from_bytes(head, "fuzz")
            reason, text = error.reason, str(error)
        batch.answers[reason] += 1
        if call not in (0, frame.header.call):
            return f"the answer to call {frame.header.call} has number {call}"
        method = frame.method
        if reason == "INVALID_FRAME" and call == 0:
            return None  # refused before the rpc and its caller were looked at
        if method is None:
            return None if reason != OK else "a number without an rpc is answered"
        return problem_with(_CALLERS[slot], method.path, reason, text)

    def _shake_hands(self, chance: random.Random, batch: Batch) -> None:
        channel = self.cluster.caller(chance.choice(_CALLERS)).channel(SERVER)
        hello, problem = try_handshake(chance, channel, self.kind)
        batch.frames += 1
        batch.answers["handshake refused"] += problem is None
        if problem is not None:
            batch.findings.append(Finding(problem, hello))

    def disconnect(self) -> None:
        """Close all connections."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def close(self) -> None:
        """Close all connections."""
        self.disconnect()


class TcpTarget(LaneTarget):
    """The lane `tcp`."""

    name: ClassVar[str] = "tcp"
    kind: ClassVar[str] = "tcp"
    frames: ClassVar[int] = 1000
    share: ClassVar[float] = 0.25


class ShmTarget(LaneTarget):
    """The lane `shm`."""

    name: ClassVar[str] = "shm"
    kind: ClassVar[str] = "shm"
    frames: ClassVar[int] = 1000
    share: ClassVar[float] = 0.25


class StreamTarget(LaneTarget):
    """The lane `stream`, the rpc Exchange."""

    name: ClassVar[str] = "stream"
    kind: ClassVar[str] = "stream"
    frames: ClassVar[int] = 500
    share: ClassVar[float] = 0.1
