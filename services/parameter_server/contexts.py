"""The contexts of distributed autograd on a server: their lookups and pending gradients.

A released context leaves a tombstone, so that late messages for it are refused.
"""

import functools
import operator
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import ContextReleased, InvalidRequest, LookupNotFound
from gradmesh.protos.frame import Array
from gradmesh.protos.limits import check_name
from gradmesh.sdk.autograd.tombstones import Tombstones, WorkerLru
from gradmesh.services.parameter_server.dedupe import DedupeEntry

Slots: TypeAlias = NDArray[np.int64]


class TableLookup(NamedTuple):
    """The rows of one table that a lookup read, as handles of the table."""

    table: str
    slots: Slots
    steps: int = 0
    """Steps applied to the table when the rows were read."""


class Gradient(NamedTuple):
    """Gradients of rows of one table; no slot twice."""

    table: str
    slots: Slots
    rows: Array


@dataclass(frozen=True, slots=True, eq=False)
class PrefetchedLookup:
    """A lookup made ahead of its step, and the number of changes that its rows include."""

    parts: list[TableLookup]
    count: int


@dataclass(slots=True, eq=False)
class OpenContext:
    """An open context: lookups and their gradients, by the caller's number of the lookup."""

    lookups: dict[int, list[TableLookup]] = field(default_factory=dict)
    prefetched: dict[int, PrefetchedLookup] = field(default_factory=dict)
    returned: dict[int, dict[int, list[Array]]] = field(default_factory=dict)
    """Gradients by lookup, then by backward pass."""
    used_at: float = 0.0

    def returned_parts(self) -> list[TableLookup]:
        """Return the lookups that have gradients."""
        return [part for number in self.returned for part in self.lookups[number]]

    def gradients(self) -> list[Gradient]:
        """Return all gradients in the order of the caller's numbers."""
        return [
            Gradient(part.table, part.slots, rows)
            for number in sorted(self.returned)
            for part, rows in zip(self.lookups[number], self._summed(number), strict=True)
        ]

    def drop(self, failed: Collection[int]) -> None:
        """Drop the gradients of failed passes."""
        for number in list(self.returned):
            passes = self.returned[number]
            self.returned[number] = {p: grads for p, grads in passes.items() if p not in failed}
            if not self.returned[number]:
                del self.returned[number]

    def _summed(self, number: int) -> list[Array]:
        """Return a lookup's gradients; those of several passes are added in order of the passes."""
        by_pass = [grads for _, grads in sorted(self.returned[number].items())]
        return [functools.reduce(operator.add, parts) for parts in zip(*by_pass, strict=True)]


@final
class Contexts:
    """The open contexts of one server.

    Args:
        clock: Monotonic seconds, replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards all below
        self._open: dict[tuple[str, int, int], OpenContext] = {}
        self._tombstones = WorkerLru(Tombstones)
        self._applied = WorkerLru(Tombstones)

    def add_lookup(self, id_: context_pb2.ContextId, number: int, parts: list[TableLookup]) -> None:
        """Store the rows of a lookup.

        A repeated lookup replaces the first one, because it may be routed with another shard map;
        after the gradients have arrived it changes nothing.

        Raises:
            ContextReleased: The context has ended.
        """
        with self._lock:
            context = self._find(id_, create=True)
            if number not in context.returned:
                context.lookups[number] = parts

    def add_prefetch(
        self, id_: context_pb2.ContextId, number: int, ahead: PrefetchedLookup
    ) -> None:
        """Store the rows of a prefetch; a repeated one replaces the first.

        Raises:
            ContextReleased: The context has ended.
        """
        with self._lock:
            self._find(id_, create=True).prefetched[number] = ahead

    def find_prefetch(self, id_: context_pb2.ContextId, number: int) -> PrefetchedLookup:
        """Return a prefetch.

        Raises:
            ContextReleased: The context has ended.
            LookupNotFound: This server has not served that lookup.
        """
        with self._lock:
            context = self._find(id_, create=False)
            if number not in context.prefetched:
                raise _not_found(id_, number)
            return context.prefetched[number]

    def adopt(
        self,
        source: context_pb2.ContextId,
        source_number: int,
        target: context_pb2.ContextId | None,
        number: int,
    ) -> PrefetchedLookup:
        """Move a prefetch to the context of its step; repeatable.

        Args:
            source: The context of the prefetch; it ends when its last lookup is removed.
            source_number: The caller's number of the lookup in `source`.
            target: The context that will send gradients; None drops the lookup.
            number: The caller's number of the lookup in `target`.

        Raises:
            ContextReleased: One of the contexts has ended.
            LookupNotFound: This server has not served that lookup.
        """
        with self._lock:
            taken = None if target is None else self._find(target, create=True)
            if taken is not None and number in taken.prefetched:
                return taken.prefetched[number]
            given = self._find(source, create=False)
            if source_number not in given.prefetched:
                raise _not_found(source, source_number)
            ahead = given.prefetched.pop(source_number)
            if taken is not None:
                taken.prefetched[number] = ahead
                taken.lookups[number] = ahead.parts
            if not given.prefetched and not given.lookups:
                self._add_tombstone(*_key(source))
                del self._open[_key(source)]
            return ahead

    def check(self, id_: context_pb2.ContextId) -> None:
        """Raise if a context may not be used.

        Raises:
            ContextReleased: It has ended.
            InvalidRequest: The id is incomplete.
        """
        with self._lock:
            self._check(id_)

    def parts(self, id_: context_pb2.ContextId, number: int) -> list[TableLookup]:
        """Return the rows that an earlier lookup read.

        Raises:
            ContextReleased: The context has ended.
            LookupNotFound: This server has not served that lookup.
        """
        with self._lock:
            context = self._find(id_, create=False)
            if number not in context.lookups:
                raise _not_found(id_, number)
            return context.lookups[number]

    def add_gradients(
        self, id_: context_pb2.ContextId, number: int, grads: list[Array], pass_number: int = 0
    ) -> None:
        """Store the gradients of a lookup, once per backward pass."""
        with self._lock:
            context = self._find(id_, create=False)
            if number in context.lookups:
                context.returned.setdefault(number, {}).setdefault(pass_number, grads)

    def drop_passes(self, id_: context_pb2.ContextId, failed: Collection[int]) -> None:
        """Drop the gradients of backward passes that failed on another process."""
        with self._lock:
            held = self._open.get(_key(id_))
            if held is not None:
                held.drop(failed)

    def check_returned(self, id_: context_pb2.ContextId, count: int) -> None:
        """Check that the gradients of `count` lookups are here, or that the context was applied.

        Raises:
            LookupNotFound: Some are lost: the server restarted after they arrived.
        """
        with self._lock:
            self._check_id(id_)
            held = self._open.get(_key(id_))
            here = 0 if held is None else len(held.returned)
            if here < count and not (held is None and self._has_tombstone(id_)):
                raise LookupNotFound(
                    f"context {_show(id_)} sent the gradients of {count} lookups here, {here} "
                    "are left: this server restarted; run the step again",
                    here=here,
                    want=count,
                )

    def restore_applied(self, worker: str, incarnation: int, counter: int) -> None:
        """Record a context that was applied before this process started."""
        with self._lock:
            self._applied.touch(worker).add(incarnation, counter)
            self._add_tombstone(worker, incarnation, counter)

    def dump_applied(self) -> list[DedupeEntry]:
        """Return the ids of applied contexts, for a snapshot."""
        with self._lock:
            return [(worker, *found.dump()) for worker, found in self._applied.items()]

    def load_applied(self, marks: Sequence[DedupeEntry]) -> None:
        """Restore what `dump_applied` returned."""
        with self._lock:
            for worker, incarnation, floor, counters in marks:
                for kept in (self._applied, self._tombstones):
                    kept.touch(worker).load(incarnation, floor, counters)

    def take_gradients(self, id_: context_pb2.ContextId) -> OpenContext:
        """End a context to apply its pending gradients; empty if it has none or was applied.

        Raises:
            ContextReleased: It was released without being applied.
        """
        with self._lock:
            self._check_id(id_)
            # An open context was not applied, however old it is.
            if _key(id_) not in self._open and self._was_applied(id_):
                return OpenContext()
            self._check(id_)
            self._applied.touch(id_.worker).add(id_.incarnation, id_.counter)
            self._add_tombstone(id_.worker, id_.incarnation, id_.counter)
            return self._open.pop(_key(id_), OpenContext())

    def release(self, context: context_pb2.ContextId) -> bool:
        """End a context; return whether it was open.

        Raises:
            InvalidRequest: The id is incomplete.
        """
        with self._lock:
            self._check_id(context)
            self._add_tombstone(context.worker, context.incarnation, context.counter)
            return self._open.pop(_key(context), None) is not None

    def release_all(self) -> None:
        """End every open context, when a run begins or rows are replaced."""
        with self._lock:
            for key in self._open:
                self._add_tombstone(*key)
            self._open.clear()

    def drop_all(self) -> None:
        """Drop all open contexts without tombstones; they may look rows up again."""
        with self._lock:
            self._open.clear()

    def is_open(self, id_: context_pb2.ContextId) -> bool:
        """Return whether a context has looked rows up here."""
        return _key(id_) in self._open

    def expecting(self) -> int:
        """Return the number of contexts that may still send gradients."""
        with self._lock:
            return sum(1 for context in self._open.values() if context.lookups)

    def release_idle(self, idle_s: float) -> int:
        """End the contexts unused for `idle_s`; return how many.

        Their worker died, or did not release them.
        """
        with self._lock:
            oldest = self._clock() - idle_s
            idle = [key for key, context in self._open.items() if context.used_at < oldest]
            for key in idle:
                self._add_tombstone(*key)
                del self._open[key]
            return len(idle)

    def openers(self) -> dict[tuple[str, int], int]:
        """Return the number of open contexts by name and incarnation of their opener."""
        with self._lock:
            return Counter(key[:2] for key in self._open)

    def drop_worker(self, name: str, incarnation: int) -> int:
        """End the contexts of a lost process; return how many."""
        with self._lock:
            gone = [key for key in self._open if key[:2] == (name, incarnation)]
            for key in gone:
                self._add_tombstone(*key)
                del self._open[key]
            return len(gone)

    def open_count(self) -> int:
        """Return the number of contexts open here."""
        with self._lock:
            return len(self._open)

    def _find(self, id_: context_pb2.ContextId, create: bool) -> OpenContext:
        key = _key(id_)
        if key not in self._open:
            self._check(id_)
            if not create:
                return OpenContext()
            check_name("worker", id_.worker)
            self._drop_older_incarnations(id_)
            self._open[key] = OpenContext()
        self._open[key].used_at = self._clock()
        return self._open[key]

    def _drop_older_incarnations(self, id_: context_pb2.ContextId) -> None:
        """End the contexts that older incarnations of the process left."""
        for key in [k for k in self._open if k[0] == id_.worker and k[1] < id_.incarnation]:
            self._add_tombstone(*key)
            del self._open[key]

    def _check_id(self, id_: context_pb2.ContextId) -> None:
        if not id_.worker or not id_.incarnation or not id_.counter:
            raise InvalidRequest("the context has no worker, incarnation or counter; set all three")

    def _check(self, id_: context_pb2.ContextId) -> None:
        self._check_id(id_)
        if self._has_tombstone(id_):
            raise ContextReleased(f"context {_show(id_)} has ended; open a new one")

    def _was_applied(self, id_: context_pb2.ContextId) -> bool:
        tombstones = self._applied.get(id_.worker)
        return tombstones is not None and tombstones.has(id_.incarnation, id_.counter)

    def _has_tombstone(self, id_: context_pb2.ContextId) -> bool:
        if _key(id_) in self._open:
            return False
        tombstones = self._tombstones.get(id_.worker)
        return tombstones is not None and tombstones.has(id_.incarnation, id_.counter)

    def _add_tombstone(self, worker: str, incarnation: int, counter: int) -> None:
        self._tombstones.touch(worker).add(incarnation, counter)


def _not_found(id_: context_pb2.ContextId, number: int) -> LookupNotFound:
    return LookupNotFound(
        f"context {_show(id_)} made no lookup {number} here; its rows came from another server, or "
        "this one restarted",
        lookup=number,
    )


def _key(id_: context_pb2.ContextId) -> tuple[str, int, int]:
    return id_.worker, id_.incarnation, id_.counter


def _show(id_: context_pb2.ContextId) -> str:
    return f"{id_.worker}/{id_.incarnation}/{id_.counter}"
