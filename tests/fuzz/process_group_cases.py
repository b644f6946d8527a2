"""Ports of process groups: strangers at the rendezvous, and frames of a member that is hostile."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.message import (
    HEADER_BYTES,
    MessageHeader,
    MessageKind,
    pack_header,
    unpack_header,
)
from gradmesh.trainer.process_group.peer.link import PeerLink
from gradmesh.trainer.process_group.peer.rendezvous import Endpoint
from gradmesh.trainer.process_group.peer.transport import SocketTransport
from gradmesh.trainer.process_group.store import FileStore
from gradmesh.trainer.process_group.tcp import TcpProcessGroup
from tests.fuzz.cases import Case, Cases, judge
from tests.fuzz.mutation import HUGE, INTERESTING, mutate

_HELLO = struct.Struct("<5sqii16s32s")
_JOIN_S = 60.0
_EXCHANGE_S = 20.0
_CLOSE_S = 30.0
_FLOATS = 64
_TEXT = "all_reduce(sum) of 64 float32"
_MOST_STRANGERS = 400
_ADDRESS = "process_group/address/0"


class ProcessGroupCases(Cases):
    """Alternates between the two sides of a group's port.

    Strangers connect to a rank that waits for another one; now and then that one joins, and both
    add numbers. Frames are sent over a connection whose handshake is done.
    """

    def prepare(self) -> None:
        self._groups = 0
        self._waiting: _Waiting | None = None
        self._valid = self._frame(MessageKind.DATA, 0, 4 * _FLOATS, _TEXT) + bytes(4 * _FLOATS)

    def run(self, chance: random.Random) -> Case:
        return self._stranger(chance) if chance.random() < 0.4 else self._member(chance)

    def _stranger(self, chance: random.Random) -> Case:
        """Do a bad handshake with a rank that waits."""
        if self._waiting is None:
            self._groups += 1
            self._waiting = _Waiting(self.folder / str(self._groups))
        waiting = self._waiting
        hello, answer = self._hello(chance, waiting), b""
        with socket.create_connection(waiting.address, _CLOSE_S) as sock:
            try:
                if chance.random() < 0.5:
                    sock.recv(16)
                sock.sendall(hello)
                sock.shutdown(socket.SHUT_WR)
                answer = _read_all(sock)
            except TimeoutError:
                return Case("kept", "a connection is kept after a bad handshake", hello)
            except OSError:
                pass  # closed before it was read
        # The verdict is the first byte after the challenge; zero welcomes.
        if answer[-33:-32] == b"\0" and len(answer) >= 33:
            return Case("welcomed", "a bad handshake is welcomed", hello)
        waiting.strangers += 1
        if waiting.strangers >= _MOST_STRANGERS or chance.random() < 0.01:
            self._waiting = None
            return self._join(waiting)
        return Case("refused")

    def _hello(self, chance: random.Random, waiting: _Waiting) -> bytes:
        generation, size, rank = chance.choice((1, 2, 2**62)), 2, chance.choice((0, 1, -1, 7))
        hello = _HELLO.pack(b"GMHS\x01", generation, size, rank, bytes(16), chance.randbytes(32))
        return mutate(chance, hello) if chance.random() < 0.7 else hello

    def _join(self, waiting: _Waiting) -> Case:
        """Let the awaited rank join, in spite of the strangers, and add numbers together."""
        total = waiting.join()
        if total is None or not np.array_equal(total, np.full(_FLOATS, 3.0, np.float32)):
            return Case("no sum", f"two ranks got {total} after strangers: {waiting.error}")
        return Case("joined")

    def _member(self, chance: random.Random) -> Case:
        """Send a frame to a rank that expects another one."""
        data = self._member_frame(chance)
        ours, theirs = socket.socketpair()
        received = np.zeros(_FLOATS, np.float32)
        link = PeerLink(ours, 1, "fuzz")
        signal = AbortSignal()
        try:
            transport = SocketTransport({1: link}, signal)
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            incoming = [memoryview(received).cast("B")]
            # A rank that only sends receives early what it expects later.
            if chance.random() < 0.4:
                transport.begin(_TEXT, {1: [memoryview(bytes(1 << 20))]}, {})
                with contextlib.suppress(TimeoutError):
                    transport.finish(time.monotonic() + 0.005)
                link._outgoing = []
            transport.begin(_TEXT, {}, {1: incoming})
            transport.finish(time.monotonic() + _EXCHANGE_S)
        except BaseException as error:
            return judge(error, data)
        finally:
            link.close()
            theirs.close()
            signal.close()
        # The padding of the header says nothing.
        if unpack_header(data[:HEADER_BYTES]) != unpack_header(self._valid[:HEADER_BYTES]):
            return Case("believed", "a frame with another header is believed", data)
        return Case("received")

    def _member_frame(self, chance: random.Random) -> bytes:
        how = chance.random()
        if how < 0.3:
            return mutate(chance, self._valid)
        kind = chance.choice(list(MessageKind))
        number = chance.choice((0, 0, 1, -1, 2**62))
        size = chance.choice((4 * _FLOATS, 0, 1, *INTERESTING, *HUGE))
        text = chance.choice((_TEXT, "", "x" * 72, "\x1b[31m", "barrier"))
        payload = chance.randbytes(chance.choice((0, 1, 4 * _FLOATS, 4 * _FLOATS + 1, 4096)))
        return self._frame(kind, number, size, text) + payload

    @staticmethod
    def _frame(kind: MessageKind, number: int, size: int, text: str) -> bytes:
        return pack_header(MessageHeader(kind, number, size % (1 << 64), text))

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.join()


class _HeldStore:
    """A store that rank 1 shares, and that holds it back before it dials rank 0."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self.released = threading.Event()

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout_s: float) -> bytes:
        if key == _ADDRESS:
            self.released.wait(timeout_s)
        return self._store.get(key, timeout_s)


class _Waiting:
    """A group of two ranks, of which rank 1 is late."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        store = FileStore(folder)
        self._held = _HeldStore(store)
        self.strangers = 0
        self.error: BaseException | None = None
        self._totals: dict[int, Any] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(rank, ranks_store), daemon=True)
            for rank, ranks_store in enumerate((store, self._held))
        ]
        for thread in self._threads:
            thread.start()
        where = json.loads(store.get(_ADDRESS, _JOIN_S))
        self.address: tuple[str, int] = (where[0], where[1])

    def _run(self, rank: int, store: Any) -> None:
        try:
            group = TcpProcessGroup.connect(
                store,
                generation=1,
                rank=rank,
                world_size=2,
                timeout_s=_JOIN_S,
                endpoint=Endpoint(host=""),
            )
            array = np.full(_FLOATS, rank + 1, np.float32)
            group.all_reduce(array, "sum").wait()
            self._totals[rank] = array
            group.close()
        except BaseException as error:
            self.error = error

    def join(self) -> Any:
        """Let rank 1 join; return the sum that rank 0 has."""
        self._held.released.set()
        for thread in self._threads:
            thread.join(_JOIN_S)
        return self._totals.get(0)


def _read_all(sock: socket.socket) -> bytes:
    data = b""
    while part := sock.recv(256):
        data += part
    return data
