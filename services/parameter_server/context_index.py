"""Which contexts are open on a server, by id and by worker, and how much memory they take."""

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias, final

from gradmesh.protos import limits
from gradmesh.protos.bound import Bound, Tally
from gradmesh.services.parameter_server.open_context import ENTRY_BYTES, OpenContext

ContextKey: TypeAlias = tuple[str, int, int]
"""Worker, incarnation, counter."""


@final
class ContextIndex:
    """The open contexts by id and by worker, within bounds; the lock of `Contexts` guards them.

    Args:
        max_bytes: Most bytes of their lookups and gradients; a worker may have half of them.
    """

    def __init__(self, max_bytes: int) -> None:
        self._open: dict[ContextKey, OpenContext] = {}
        self._by_worker: dict[str, set[ContextKey]] = {}
        self._count = Tally(limits.CONTEXTS)
        self.bound = Bound(
            "bytes of lookups and pending gradients",
            max_bytes,
            max_bytes // 2,
            "use smaller batches, or raise parameter_server.max_store_bytes",
        )
        self._bytes = Tally(self.bound)
        # Below these totals no single context or worker can be at a limit.
        self._quick_count = limits.CONTEXTS.per_caller
        self._quick_bytes = min(self.bound.per_caller, limits.LOOKUPS.total * ENTRY_BYTES)

    def get(self, key: ContextKey) -> OpenContext | None:
        """Return a context, or None."""
        return self._open.get(key)

    def has_space(self, size: int) -> bool:
        """Return whether any worker may add this number of bytes, without looking up its own."""
        few = self._count.total < self._quick_count
        return few and self._bytes.total + size <= self._quick_bytes

    def check(self, key: ContextKey, size: int) -> None:
        """Check that a context, perhaps a new one, may have one more lookup.

        Args:
            key: The context.
            size: Bytes of the lookup.

        Raises:
            LimitExceeded: It may not.
        """
        held = self._open.get(key)
        if held is None:
            self._count.check(key[0])
        else:
            limits.LOOKUPS.check(len(held.lookups) + len(held.prefetched))
        self._bytes.check(key[0], size)

    def check_bytes(self, key: ContextKey, size: int) -> None:
        """Check that a context may have more bytes of gradients.

        Raises:
            LimitExceeded: It may not.
        """
        self._bytes.check(key[0], size)

    def add(self, key: ContextKey) -> OpenContext:
        """Add a new context."""
        made = self._open[key] = OpenContext()
        self._by_worker.setdefault(key[0], set()).add(key)
        self._count.add(key[0])
        return made

    def grow(self, key: ContextKey, held: OpenContext, more: int) -> None:
        """Count bytes of a context that is open."""
        held.size += more
        self._bytes.add(key[0], more)

    def pop(self, key: ContextKey) -> OpenContext | None:
        """Remove a context; return it, or None."""
        held = self._open.pop(key, None)
        if held is not None:
            self._by_worker[key[0]].discard(key)
            if not self._by_worker[key[0]]:
                del self._by_worker[key[0]]
            self._count.remove(key[0])
            self._bytes.remove(key[0], held.size)
        return held

    def clear(self) -> None:
        """Remove all contexts."""
        self._open.clear()
        self._by_worker.clear()
        self._count.clear()
        self._bytes.clear()

    def of_worker(self, worker: str) -> list[ContextKey]:
        """Return the contexts that a worker has opened."""
        return list(self._by_worker.get(worker, ()))

    def items(self) -> list[tuple[ContextKey, OpenContext]]:
        """Return all contexts."""
        return list(self._open.items())

    def openers(self) -> dict[tuple[str, int], int]:
        """Return the number of contexts by name and incarnation of their opener."""
        return Counter(key[:2] for key in self._open)

    def __contains__(self, key: object) -> bool:
        return key in self._open

    def __iter__(self) -> Iterator[ContextKey]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)
