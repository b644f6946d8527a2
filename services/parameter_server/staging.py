"""The staged tables of a reshard: rows from other servers, until the new map is current."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import BUCKETS
from gradmesh.services.parameter_server.log.record import MarksStaged, MoveBegun, TableMade
from gradmesh.services.parameter_server.table import Budget, TableShard

# State per bucket is sent with rows, and set separately.
_OF_BUCKETS = ("buckets", "clocks", "counters", "uses")


@final
class Staging:
    """The staged tables of one server in a reshard. Calls are serialised by the caller.

    Args:
        begun: The buckets of this server after the reshard.
        budget: Memory for the staged tables.
        build: Makes a table without rows.

    Attributes:
        begun: As given.
        budget: As given.
        tables: The staged tables, by name.
        made: Their specifications and buckets.
        marks: Run state, step counts and dedupe table, by the server that sent them.
        logged: Tables whose creation is in the log.
        has_kept: Whether the rows that stay are already in the staged tables, except those of
            tables that count uses.
    """

    def __init__(
        self,
        begun: MoveBegun,
        budget: Budget,
        build: Callable[[TableMade, Budget], TableShard],
    ) -> None:
        self.begun = begun
        self.budget = budget
        self._build = build
        self.tables: dict[str, TableShard] = {}
        self.made: dict[str, TableMade] = {}
        self.marks: dict[str, MarksStaged] = {}
        self.logged: set[str] = set()
        self.has_kept = False

    def table(self, spec: table_pb2.TableSpec) -> TableShard:
        """Return a staged table, made at first use.

        Raises:
            StoreFull: It does not fit.
        """
        if spec.name not in self.tables:
            made = TableMade(spec.SerializeToString(deterministic=True), self.begun.owned)
            self.tables[spec.name] = self._build(made, self.budget)
            self.made[spec.name] = made
        return self.tables[spec.name]

    def check_marks(self, marks: MarksStaged) -> None:
        """Check that the dedupe table of one more server may be staged.

        Raises:
            LimitExceeded: There are too many, or they are too large.
        """
        others = [held for source, held in self.marks.items() if source != marks.source]
        limits.STAGED_MARKS.check(sum(map(_bytes_of, others)), more=_bytes_of(marks))

    def check_room(self, held: Sequence[TableShard]) -> None:
        """Check that the rows that stay and are not copied yet fit beside the staged ones.

        Raises:
            StoreFull: They do not fit.
        """
        kept = int(bits(self.begun.kept).sum())
        others = 0
        for old in held if kept else ():
            table = self.table(old.spec)  # takes the memory of fixed rows
            if old.counts_uses and not table.spec.hot_bytes:
                rows = old.row_count * kept // max(1, old.buckets)
                need = int(rows * table.expected_row_bytes)
                self.budget.check(table.name, need, others)
                others += need

    @contextlib.contextmanager
    def over_budget(self) -> Iterator[None]:
        """Lift the limit while rows that were found to fit are copied: refusal is too late."""
        limit, self.budget.max_bytes = self.budget.max_bytes, 1 << 62
        try:
            yield
        finally:
            self.budget.max_bytes = limit

    def take_over(self, old: TableShard) -> None:
        """Copy the rows that stay, unless they were copied; nothing changes them meanwhile."""
        kept = bits(self.begun.kept)
        if not kept.any():
            return
        table, migration = self.table(old.spec), old.changes.migration
        table.steps = max(table.steps, old.steps)
        if self.has_kept and not old.counts_uses:
            return
        for number in range(migration.pieces):
            self._fill(table, migration.piece(number, kept))
        self._fill(table, migration.memory(kept))

    @staticmethod
    def _fill(table: TableShard, block: dict[str, Array]) -> None:
        if block:
            fill(table, block)

    def adopt_steps(self) -> None:
        """Set the step counts of staged tables to those of their source servers."""
        for marks in self.marks.values():
            for name, steps in marks.steps.items():
                if name in self.tables:
                    self.tables[name].steps = max(self.tables[name].steps, steps)


def _bytes_of(marks: MarksStaged) -> int:
    """Return about how many bytes the numbers of a dedupe table take, and its entries."""
    return 4096 + sum(256 + 64 * len(numbers) for *_, numbers in marks.pushes)


def fill(table: TableShard, block: dict[str, Array]) -> None:
    """Set rows of a table, and its state per bucket.

    Raises:
        InvalidRequest: The arrays do not fit.
        StaleShardMap: Rows are of buckets that the table does not hold.
        StoreFull: The rows do not fit.
    """
    rows = {name: array for name, array in block.items() if name not in _OF_BUCKETS}
    memory = {name: array for name, array in block.items() if name in _OF_BUCKETS}
    if rows:
        table.restore(rows)
    if memory:
        table.restore(memory)


def bits(packed: bytes) -> NDArray[np.bool_]:
    """Return for each bucket whether its bit is set."""
    return np.unpackbits(np.frombuffer(packed, np.uint8), count=BUCKETS).astype(np.bool_)
