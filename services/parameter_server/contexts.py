"""What a server keeps for contexts of distributed autograd: lookups and gradients.

A released context leaves a tombstone, so that a late message cannot bring it back to life.
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
from gradmesh.sdk.autograd.tombstones import Tombstones, WorkerLru
from gradmesh.services.parameter_server.dedupe import DedupeEntry

Slots: TypeAlias = NDArray[np.int64]


class TableLookup(NamedTuple):
    """The rows of one table that a lookup read, by the handles that the table gave."""

    table: str
    slots: Slots
    steps: int = 0
    """Steps applied to the table when it was read."""


class Gradient(NamedTuple):
    """Gradients of rows of one table; no slot twice."""

    table: str
    slots: Slots
    rows: Array


@dataclass(frozen=True, slots=True, eq=False)
class PrefetchedLookup:
    """A lookup made ahead of its step, and the count of changes that its rows have seen."""

    parts: list[TableLookup]
    count: int


@dataclass(slots=True, eq=False)
class OpenContext:
    """An open context: what was read and what came back, by the caller's number of the lookup."""

    lookups: dict[int, list[TableLookup]] = field(default_factory=dict)
    prefetched: dict[int, PrefetchedLookup] = field(default_factory=dict)
    returned: dict[int, dict[int, list[Array]]] = field(default_factory=dict)
    """Gradients by lookup, then by backward pass."""
    used_at: float = 0.0

    def returned_parts(self) -> list[TableLookup]:
        """Return what was read and has gradients."""
        return [part for number in self.returned for part in self.lookups[number]]

    def gradients(self) -> list[Gradient]:
        """Return all gradients in the order of the caller's numbers."""
        return [
            Gradient(part.table, part.slots, rows)
            for number in sorted(self.returned)
            for part, rows in zip(self.lookups[number], self._summed(number), strict=True)
        ]

    def drop(self, failed: Collection[int]) -> None:
        """Forget the gradients of passes that failed."""
        for number in list(self.returned):
            passes = self.returned[number]
            self.returned[number] = {p: grads for p, grads in passes.items() if p not in failed}
            if not self.returned[number]:
                del self.returned[number]

    def _summed(self, number: int) -> list[Array]:
        """Return a lookup's gradients, those of several passes added in their order."""
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
        """Keep the rows of a lookup; the same again changes nothing once gradients are here.

        Before that the newest counts: a lookup that is routed anew may ask for other rows.

        Raises:
            ContextReleased: The context is over.
        """
        with self._lock:
            context = self._find(id_, create=True)
            if number not in context.returned:
                context.lookups[number] = parts

    def add_prefetch(
        self, id_: context_pb2.ContextId, number: int, ahead: PrefetchedLookup
    ) -> None:
        """Keep the rows of a lookup made ahead of its step; the newest counts.

        Raises:
            ContextReleased: The context is over.
        """
        with self._lock:
            self._find(id_, create=True).prefetched[number] = ahead

    def find_prefetch(self, id_: context_pb2.ContextId, number: int) -> PrefetchedLookup:
        """Return a lookup made ahead of its step.

        Raises:
            ContextReleased: The context is over.
            LookupNotFound: There was no such lookup here.
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
        """Move a lookup made ahead to the context of its step; the same again gives the same.

        Args:
            source: The context it was made in; over when its last lookup is gone.
            source_number: The caller's number of the lookup in it.
            target: The context that will send gradients; None lets the lookup go.
            number: The caller's number of the lookup in that.

        Raises:
            ContextReleased: One of the contexts is over.
            LookupNotFound: There was no such lookup here.
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
        """Return if the context may still be used.

        Raises:
            ContextReleased: It is over.
            InvalidRequest: It is no id.
        """
        with self._lock:
            self._check(id_)

    def parts(self, id_: context_pb2.ContextId, number: int) -> list[TableLookup]:
        """Return what a former lookup read.

        Raises:
            ContextReleased: The context is over.
            LookupNotFound: It never made that lookup here.
        """
        with self._lock:
            context = self._find(id_, create=False)
            if number not in context.lookups:
                raise _not_found(id_, number)
            return context.lookups[number]

    def add_gradients(
        self, id_: context_pb2.ContextId, number: int, grads: list[Array], pass_number: int = 0
    ) -> None:
        """Keep the gradients of a lookup; the same again, of the same pass, change nothing."""
        with self._lock:
            context = self._find(id_, create=False)
            if number in context.lookups:
                context.returned.setdefault(number, {}).setdefault(pass_number, grads)

    def drop_passes(self, id_: context_pb2.ContextId, failed: Collection[int]) -> None:
        """Forget the gradients of backward passes that failed elsewhere."""
        with self._lock:
            held = self._open.get(_key(id_))
            if held is not None:
                held.drop(failed)

    def check_returned(self, id_: context_pb2.ContextId, count: int) -> None:
        """Return if the gradients of so many lookups are here, or the context was applied.

        Raises:
            LookupNotFound: Some are gone: the server restarted since they came.
        """
        with self._lock:
            self._check_id(id_)
            held = self._open.get(_key(id_))
            here = 0 if held is None else len(held.returned)
            if here < count and not (held is None and self._has_tombstone(id_)):
                raise LookupNotFound(
                    f"context {_show(id_)} brought the gradients of {count} lookups here, {here} "
                    "are left: this server restarted; run the step again",
                    here=here,
                    want=count,
                )

    def restore_applied(self, worker: str, incarnation: int, counter: int) -> None:
        """Take notice of a context that was applied before this process began."""
        with self._lock:
            self._applied.touch(worker).add(incarnation, counter)
            self._add_tombstone(worker, incarnation, counter)

    def dump_applied(self) -> list[DedupeEntry]:
        """Return which contexts were applied, for a snapshot."""
        with self._lock:
            return [(worker, *found.dump()) for worker, found in self._applied.items()]

    def load_applied(self, marks: Sequence[DedupeEntry]) -> None:
        """Remember what `dump_applied` returned."""
        with self._lock:
            for worker, incarnation, floor, counters in marks:
                for kept in (self._applied, self._tombstones):
                    kept.touch(worker).load(incarnation, floor, counters)

    def take_gradients(self, id_: context_pb2.ContextId) -> OpenContext:
        """Bury a context to apply what was kept for it; empty if nothing was, or if it was applied.

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
        """Bury a context; return whether anything was kept for it.

        Raises:
            InvalidRequest: It is no id.
        """
        with self._lock:
            self._check_id(context)
            self._add_tombstone(context.worker, context.incarnation, context.counter)
            return self._open.pop(_key(context), None) is not None

    def release_all(self) -> None:
        """Bury every open context, when a run begins anew."""
        with self._lock:
            for key in self._open:
                self._add_tombstone(*key)
            self._open.clear()

    def drop_all(self) -> None:
        """Forget what every open context has read here; it may look rows up again."""
        with self._lock:
            self._open.clear()

    def is_open(self, id_: context_pb2.ContextId) -> bool:
        """Tell whether a context has looked rows up here."""
        return _key(id_) in self._open

    def expecting(self) -> int:
        """Return how many contexts have read rows that gradients may come for."""
        with self._lock:
            return sum(1 for context in self._open.values() if context.lookups)

    def release_idle(self, idle_s: float) -> int:
        """Bury the contexts that nobody has used for so long; return how many.

        Their worker died, or forgot them.
        """
        with self._lock:
            oldest = self._clock() - idle_s
            idle = [key for key, context in self._open.items() if context.used_at < oldest]
            for key in idle:
                self._add_tombstone(*key)
                del self._open[key]
            return len(idle)

    def openers(self) -> dict[tuple[str, int], int]:
        """Return how many are open here, by name and incarnation of who opened them."""
        with self._lock:
            return Counter(key[:2] for key in self._open)

    def drop_worker(self, name: str, incarnation: int) -> int:
        """Bury the contexts of a process that is gone; return how many."""
        with self._lock:
            gone = [key for key in self._open if key[:2] == (name, incarnation)]
            for key in gone:
                self._add_tombstone(*key)
                del self._open[key]
            return len(gone)

    def open_count(self) -> int:
        """Return how many contexts are open here."""
        with self._lock:
            return len(self._open)

    def _find(self, id_: context_pb2.ContextId, create: bool) -> OpenContext:
        key = _key(id_)
        if key not in self._open:
            self._check(id_)
            if not create:
                return OpenContext()
            self._drop_older_incarnations(id_)
            self._open[key] = OpenContext()
        self._open[key].used_at = self._clock()
        return self._open[key]

    def _drop_older_incarnations(self, id_: context_pb2.ContextId) -> None:
        """Forget what the process of that name left before it restarted."""
        for key in [k for k in self._open if k[0] == id_.worker and k[1] < id_.incarnation]:
            self._add_tombstone(*key)
            del self._open[key]

    def _check_id(self, id_: context_pb2.ContextId) -> None:
        if not id_.worker or not id_.incarnation or not id_.counter:
            raise InvalidRequest("the context has no worker, incarnation or counter; set all three")

    def _check(self, id_: context_pb2.ContextId) -> None:
        self._check_id(id_)
        if self._has_tombstone(id_):
            raise ContextReleased(f"context {_show(id_)} is over; open a new one")

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
