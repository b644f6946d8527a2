"""Which tables are being restored, and by whom. Pure; called under the store's lock."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import final

from gradmesh.protos.errors import InvalidRequest, ShardNotReady, SnapshotLost

_REMEMBERED = 64


@final
class Restores:
    """The restores under way; a newer one of the same table puts an older one out."""

    def __init__(self) -> None:
        self._tables: dict[str, tuple[str, ...]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def has(self, restore: str) -> bool:
        """Tell whether a restore is under way or over."""
        return restore in self._tables or restore in self._ended

    def begin(self, restore: str, tables: Sequence[str]) -> None:
        """Close tables for lookups.

        Raises:
            InvalidRequest: It has no name, or no tables.
        """
        if not restore or not tables:
            raise InvalidRequest("a restore needs a name and tables; set both")
        self.drop(tables)
        self._tables[restore] = tuple(tables)

    def under_way(self) -> dict[str, list[str]]:
        """Return the tables of each restore that has not ended."""
        return {name: list(tables) for name, tables in self._tables.items()}

    def drop(self, tables: Sequence[str]) -> None:
        """Forget the restores of tables that begin anew."""
        for name in [n for n, held in self._tables.items() if set(held) & set(tables)]:
            del self._tables[name]

    def check_open(self, table: str) -> None:
        """Return if a table may be used.

        Raises:
            ShardNotReady: It is being restored.
        """
        # Asked at every lookup, without a lock: the list is a copy that nobody changes.
        if self._tables and any(table in held for held in list(self._tables.values())):
            raise ShardNotReady(
                f"table {table!r} is being restored; ask again, and if the restore was given up, "
                "restore it once more or give it up with `gradmesh table reset`",
                table=table,
            )

    def check_own(self, restore: str, table: str) -> None:
        """Return if a restore may fill a table.

        Raises:
            SnapshotLost: It may not any more.
        """
        if table not in self._tables.get(restore, ()):
            raise SnapshotLost(
                f"restore {restore} of table {table!r} is over: the server restarted, or another "
                "restore or run began; begin again",
                restore=restore,
            )

    def end(self, restore: str) -> tuple[str, ...]:
        """Open the tables; return them, none if that was done before.

        Raises:
            SnapshotLost: There is no such restore.
        """
        if restore in self._ended:
            return ()
        if restore not in self._tables:
            raise SnapshotLost(f"restore {restore} is not known here; begin again", restore=restore)
        self._ended[restore] = None
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        return self._tables.pop(restore)
