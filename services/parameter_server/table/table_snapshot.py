"""A copy-on-write snapshot: a table as it was at one moment, read while the table changes.

A row is copied before it is first changed, moved or evicted after that moment. The reader takes all
other rows piece by piece. So freezing copies no row, and an operation that changes rows copies at
most those rows, once.
"""

from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids
from gradmesh.services.parameter_server.table.index import Handles, Slots
from gradmesh.services.parameter_server.table.memory import Account
from gradmesh.services.parameter_server.table.rows import Rows
from gradmesh.services.parameter_server.table.scan import IndexScan, Marks

Block: TypeAlias = dict[str, Array]


@final
class SlotSet:
    """A set of slots below a limit; slots beyond it count as members.

    Args:
        limit: Number of slots when the set was made.
    """

    def __init__(self, limit: int) -> None:
        self._bits = np.zeros(limit, np.bool_)

    def add(self, slots: Slots) -> None:
        """Add slots; negative ones are left out."""
        self._bits[slots[(slots >= 0) & (slots < self._bits.size)]] = True

    def has(self, slots: Slots) -> NDArray[np.bool_]:
        """Return for each slot whether it is a member."""
        if not self._bits.size:
            return np.ones(slots.size, np.bool_)
        inside = self._bits.take(slots, mode="clip")
        return inside | (slots >= self._bits.size)

    def copy(self) -> "SlotSet":
        """Return a copy."""
        made = SlotSet(0)
        made._bits = self._bits.copy()
        return made


@final
class TableSnapshot:
    """The state of a table at one moment; called under the table's lock.

    Args:
        name: Name of the snapshot.
        scan: Scan of the table's index.
        rows: Rows of the table.
        limit: Slots in use.
        steps: Steps applied to the table.
        scope: The slots whose rows are wanted; None for all.
        with_expired: Whether to include expired rows that are not removed yet: they count towards
            the limit of a bucket, so a log that resumes this very table needs them.
        account: Memory for copied rows.
    """

    def __init__(
        self,
        name: str,
        scan: IndexScan,
        rows: Rows,
        limit: int,
        steps: int,
        scope: SlotSet | None,
        account: Account,
        *,
        with_expired: bool = False,
    ) -> None:
        self.name = name
        self._account = account
        self._held = 0
        self.steps = steps
        self._scan = scan
        self._rows = rows
        self._scope = scope
        self._oldest = 0 if with_expired else scan.oldest(steps)
        self._done = SlotSet(limit)
        self._pieces = scan.pieces
        self._copied: list[Block] = []
        self._bucket_state = scan.bucket_state()

    def before_use(self, handles: Handles) -> None:
        """Copy what a use of these rows changes: their marks, and rows that new ones may evict."""
        if not self._scan.evicts:
            return
        slots, marks = self._scan.find(handles, self._oldest)
        held = slots >= 0
        self._preserve(handles[held], slots[held], marks[held])
        if not held.all():
            self.before_drop(self._scan.pieces_of(handles[~held]))

    def before_change(self, ids: Ids, slots: Slots) -> None:
        """Copy rows that are about to change; `before_use` was called for them."""
        held = slots >= 0
        self._preserve(ids[held], slots[held], np.zeros(int(held.sum()), np.uint32))

    def before_drop(self, pieces: list[int]) -> None:
        """Copy whole pieces, any row of which may be removed."""
        for piece in pieces:
            self._preserve(*self._scan.piece(piece, self._oldest))

    def leave_out(self, slots: Slots) -> None:
        """Exclude rows that did not exist at the moment of the snapshot."""
        self._done.add(slots)

    def _preserve(self, ids: Ids, slots: Slots, marks: Marks) -> None:
        fresh = slots.size - int(self._done.has(slots).sum())
        # An estimate, before they are copied; corrected below.
        self._account.take(fresh * self._rows.layout.row_bytes)
        block = self._take(ids, slots, marks)
        if block:
            self._copied.append(block)
            self._held += _size(block)
        self._account.settle(self._held)

    def _take(self, ids: Ids, slots: Slots, marks: Marks) -> Block:
        left = ~self._done.has(slots)
        if not left.any():
            return {}
        ids, slots, marks = ids[left], slots[left], marks[left]
        self._done.add(slots)
        block: Block = {}
        if self._scope is not None:
            if self._scan.evicts:
                block = {"alive": ids.copy(), "alive_marks": marks.copy()}
            wanted = self._scope.has(slots)
            ids, slots, marks = ids[wanted], slots[wanted], marks[wanted]
            if not ids.size:
                return block
        rows = np.empty((ids.size, self._rows.layout.dim), self._rows.layout.dtype)
        self._rows.read(slots, rows)
        block |= {"ids": ids.copy(), "rows": rows}
        if self._scan.evicts:
            block["marks"] = marks.copy()
        return block | {f"state.{n}": a for n, a in self._rows.state(slots).items()}

    def read(self, piece: int) -> Block | None:
        """Return a piece and release it, so that each can be read once; None after the last.

        Pieces of the table come first, then copied rows, last the state per bucket.
        """
        if piece < self._pieces:
            return self._take(*self._scan.piece(piece, self._oldest))
        if self._copied:
            block = self._copied.pop()
            self._held -= _size(block)
            self._account.settle(self._held)
            return block
        memory, self._bucket_state = self._bucket_state, {}
        return memory or None


def _size(block: Block) -> int:
    return sum(array.nbytes for array in block.values())
