"""How much memory the tables of a server may take, asked before any is touched."""

import threading
from typing import final

from gradmesh.protos.errors import StoreFull


@final
class Budget:
    """Memory for all tables of a server.

    Args:
        max_bytes: How much there is.
        owner: Name of the server, for messages.
    """

    def __init__(self, max_bytes: int, owner: str = "this server") -> None:
        self.max_bytes = max_bytes
        self._owner = owner
        self._lock = threading.Lock()  # guards _taken
        self._taken = 0

    @property
    def taken(self) -> int:
        """Bytes promised to tables."""
        return self._taken

    @property
    def left(self) -> int:
        """Bytes that can still be promised."""
        return self.max_bytes - self._taken

    def take(self, table: str, need: int) -> None:
        """Promise memory to a table.

        Raises:
            StoreFull: There is not so much left; nothing is promised.
        """
        with self._lock:
            self.check(table, need)
            self._taken += need

    def check(self, table: str, need: int, others: int = 0) -> None:
        """Return if there is memory for a table, and for what others are about to take.

        Raises:
            StoreFull: There is not so much left.
        """
        held = self._taken + others
        if held + need > self.max_bytes:
            raise StoreFull(
                f"table {table!r} takes {need} bytes more on {self._owner}, {held} of "
                f"{self.max_bytes} are in use; raise max_store_bytes, add parameter servers or "
                "give the table an eviction with max_bytes",
                table=table,
                need=need,
                held=held,
                max_bytes=self.max_bytes,
            )

    def settle(self, difference: int) -> None:
        """Correct what was promised by what it turned out to be."""
        with self._lock:
            self._taken += difference


@final
class Account:
    """What one table has of a budget. Its calls are made one at a time.

    Args:
        budget: Of the server.
        table: Name of the table.
    """

    def __init__(self, budget: Budget, table: str) -> None:
        self.max_bytes = budget.max_bytes
        self._budget = budget
        self._table = table
        self._held = 0

    def take(self, need: int) -> None:
        """Ask for more memory.

        Raises:
            StoreFull: There is not so much left; nothing is promised.
        """
        self._budget.take(self._table, need)
        self._held += need

    def check(self, need: int, others: int) -> None:
        """Return if there is so much memory, and more for other tables.

        Raises:
            StoreFull: There is not so much left.
        """
        self._budget.check(self._table, need, others)

    def settle(self, held: int) -> None:
        """Say how much it really is."""
        self._budget.settle(held - self._held)
        self._held = held
