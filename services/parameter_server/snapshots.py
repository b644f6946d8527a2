"""The snapshots of a server, which clients read page by page."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

import numpy as np

from gradmesh.protos import limits
from gradmesh.protos.bound import Tally
from gradmesh.protos.errors import BaseLost, InvalidRequest, ShardNotReady, SnapshotLost
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.process import fault
from gradmesh.services.parameter_server.run import Run
from gradmesh.services.parameter_server.table import TableShard
from gradmesh.services.parameter_server.table.table_snapshot import Block

Owner: TypeAlias = tuple[str, int]
"""Name and incarnation of the process that began a snapshot; an empty name if it sent none."""

# Most bytes of a response, unless the caller requests less.
_PAGE_BYTES = 4 << 20
# Factor by which a completely read snapshot is kept longer.
_PATIENCE = 60
_GROUPS = (
    ("ids", "rows", "marks", "state."),
    ("alive",),
    ("buckets", "clocks", "counters", "uses"),
)


@final
@dataclass(slots=True, eq=False)
class _Reader:
    """The read position of one table; the newest page is kept for repeated calls."""

    table: TableShard
    lock: threading.Lock = field(default_factory=threading.Lock)
    cursor: int = -1
    page: Block = field(default_factory=dict)
    piece: int = 0
    rest: deque[Block] = field(default_factory=deque)
    rest_bytes: int = 0
    ended: bool = False

    def read(self, snapshot: str, cursor: int, max_bytes: int) -> Block:
        with self.lock:
            if cursor == self.cursor:
                return self.page
            if cursor != self.cursor + 1 or self.ended:
                raise InvalidRequest(
                    f"snapshot {snapshot}: page {cursor} after page {self.cursor}; read in order",
                    snapshot=snapshot,
                )
            # If reading fails below, blocks already read stay in `rest`.
            while self.rest_bytes < max_bytes and not self.ended:
                block = self.table.changes.read(snapshot, self.piece)
                self.piece += 1
                if block is None:
                    self.ended = True
                else:
                    self.rest.extend(slices(block, max_bytes))
                    self.rest_bytes += _size(block)
            page, size = [], 0
            while self.rest and size < max_bytes:
                page.append(self.rest.popleft())
                size += _size(page[-1])
            self.rest_bytes -= size
            self.ended = self.ended and not self.rest
            self.cursor, self.page = cursor, joined(page)
            return self.page


@final
@dataclass(slots=True, eq=False)
class _Session:
    """One snapshot: armed until its step is applied, then frozen."""

    readers: dict[str, _Reader]
    base: str
    step: int | None
    generation: int
    used_at: float
    owner: Owner
    frozen: bool = False
    applied_steps: int = 0

    @property
    def was_read(self) -> bool:
        """Whether it was read to its end; it then holds little memory until it is released."""
        return self.frozen and all(reader.ended for reader in self.readers.values())


@final
class Snapshots:
    """All snapshots of one server. `begin` and `reach` are called under the steps' lock.

    Args:
        clock: Monotonic seconds, replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards _sessions
        self._sessions: dict[str, _Session] = {}
        self._held = Tally(limits.SNAPSHOTS)

    def begin(
        self,
        name: str,
        tables: Sequence[TableShard],
        step: int | None,
        base: str,
        run: Run,
        owner: Owner = ("", 0),
    ) -> pb.BeginSnapshotResponse:
        """Freeze tables now, or when the run reaches a step; a repeated call only reports.

        Releases the snapshots of older incarnations of the owner.

        Raises:
            ShardNotReady: Another snapshot of a table is under way.
            BaseLost: The changes since the base are not recorded.
            LimitExceeded: The owner, or all together, have too many snapshots here.
        """
        if not name or not tables:
            raise InvalidRequest("a snapshot needs a name and tables; set both")
        session = self._find(name)
        if session is None or not session.frozen:
            self._release(lambda held: held[0] == owner[0] and held[1] < owner[1])
            if session is None:
                with self._lock:
                    self._held.check(owner[0])
            readers = {table.spec.name: _Reader(table) for table in tables}
            session = _Session(readers, base, step, run.generation, self._clock(), owner)
            for table in tables:
                table.changes.check(name, base)
            if step is None:
                self._freeze(name, session, run)
            if step is None or step > run.applied_steps:
                self._put(name, session)
        session.used_at = self._clock()
        return self._report(name, session, run)

    def _put(self, name: str, session: _Session) -> None:
        with self._lock:
            self._remove(name)
            self._sessions[name] = session
            self._held.add(session.owner[0])

    def _remove(self, name: str) -> None:
        """Remove a snapshot; the lock is held."""
        former = self._sessions.pop(name, None)
        if former is not None:
            self._held.remove(former.owner[0])

    def reach(self, run: Run) -> None:
        """Freeze the snapshots that wait for the step just applied."""
        with self._lock:
            due = [
                (name, session)
                for name, session in self._sessions.items()
                if not session.frozen
                and session.generation == run.generation
                and session.step == run.applied_steps
            ]
        for name, session in due:
            try:
                self._freeze(name, session, run)
            except (ShardNotReady, BaseLost):
                # Another snapshot began first. The step must continue; the client gets the error
                # when it repeats its call.
                self.end(name, stored=False)

    def drop_armed(self) -> None:
        """Drop the snapshots that wait for a step: a reshard has replaced their tables."""
        with self._lock:
            for name in [n for n, held in self._sessions.items() if not held.frozen]:
                self._remove(name)

    @property
    def count(self) -> int:
        """Number of snapshots."""
        return len(self._sessions)

    def _freeze(self, name: str, session: _Session, run: Run) -> None:
        for reader in session.readers.values():
            reader.table.freeze(name, session.base)
        session.frozen, session.applied_steps = True, run.applied_steps
        fault.point("frozen", run.applied_steps)

    def _report(self, name: str, session: _Session, run: Run) -> pb.BeginSnapshotResponse:
        if not session.frozen:
            return pb.BeginSnapshotResponse(
                generation=run.generation, applied_steps=run.applied_steps
            )
        frozen = [
            pb.FrozenTable(
                name=table, steps=reader.table.changes.steps(name), rows=reader.table.row_count
            )
            for table, reader in session.readers.items()
        ]
        return pb.BeginSnapshotResponse(
            frozen=True,
            generation=session.generation,
            applied_steps=session.applied_steps,
            tables=frozen,
        )

    def owner_of(self, name: str) -> Owner:
        """Return name and incarnation of the process that began a snapshot; empty if unknown."""
        session = self._find(name)
        return ("", 0) if session is None else session.owner

    def read(self, name: str, table: str, cursor: int, max_bytes: int) -> tuple[Block, int]:
        """Return a page of a table, and the cursor of the next; 0 at the end.

        Raises:
            SnapshotLost: The snapshot has ended.
            InvalidRequest: The table is not in it, or the cursor is not the next.
        """
        session = self._find(name)
        if session is None or not session.frozen:
            raise SnapshotLost(f"there is no snapshot {name} here; begin again", snapshot=name)
        if table not in session.readers:
            raise InvalidRequest(f"table {table!r} is not in snapshot {name}", table=table)
        session.used_at = self._clock()
        reader = session.readers[table]
        page = reader.read(name, cursor, min(max_bytes or _PAGE_BYTES, _PAGE_BYTES))
        fault.point("snapshot-read", session.applied_steps)
        return page, 0 if reader.ended else cursor + 1

    def end(self, name: str, stored: bool) -> None:
        """Release a snapshot.

        Raises:
            SnapshotLost: It was stored as a base, but had ended.
        """
        session = self._find(name)
        if session is None:
            return
        for reader in session.readers.values():
            reader.table.changes.thaw(name, stored)
        with self._lock:
            self._remove(name)

    def openers(self) -> dict[Owner, int]:
        """Return the owners of snapshots, each with 0: snapshots do not count as contexts."""
        with self._lock:
            return {session.owner: 0 for session in self._sessions.values() if session.owner[0]}

    def drop_worker(self, name: str, incarnation: int) -> int:
        """Release the snapshots of a lost process; return how many."""
        return self._release(lambda held: held == (name, incarnation))

    def _release(self, is_gone: Callable[[Owner], bool]) -> int:
        with self._lock:
            gone = [n for n, session in self._sessions.items() if is_gone(session.owner)]
        for name in gone:
            self.end(name, stored=False)
        return len(gone)

    def release_idle(self, idle_s: float) -> int:
        """Release the snapshots unread for `idle_s`; return how many."""
        with self._lock:
            now = self._clock()
            idle = [
                name
                for name, session in self._sessions.items()
                if now - session.used_at > idle_s * (_PATIENCE if session.was_read else 1)
            ]
        for name in idle:
            self.end(name, stored=False)
        return len(idle)

    def _find(self, name: str) -> _Session | None:
        with self._lock:
            return self._sessions.get(name)


def _size(block: Block) -> int:
    return sum(array.nbytes for array in block.values())


def slices(block: Block, max_bytes: int) -> Iterator[Block]:
    """Yield a block in slices of at most `max_bytes`; arrays of one group stay together."""
    for prefixes in _GROUPS:
        group = {n: array for n, array in block.items() if n.startswith(prefixes)}
        if not group:
            continue
        rows = len(next(iter(group.values())))
        most = max(1, rows * max_bytes // max(1, _size(group)))
        for begin in range(0, rows, most):
            yield {name: array[begin : begin + most] for name, array in group.items()}


def joined(blocks: list[Block]) -> Block:
    """Return several blocks as one."""
    names = dict.fromkeys(name for block in blocks for name in block)
    return {name: np.concatenate([b[name] for b in blocks if name in b]) for name in names}
