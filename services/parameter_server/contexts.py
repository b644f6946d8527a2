"""The contexts of distributed autograd on a server: their lookups and pending gradients.

A released context leaves a tombstone, so that late messages for it are refused.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import final

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import ContextReleased, InvalidRequest, LookupNotFound
from gradmesh.protos.frame import Array
from gradmesh.protos.limits import check_name
from gradmesh.sdk.autograd.tombstones import ContextTombstones
from gradmesh.services.parameter_server.context_index import ContextIndex, ContextKey
from gradmesh.services.parameter_server.dedupe import DedupeEntry
from gradmesh.services.parameter_server.open_context import (
    OpenContext,
    PrefetchedLookup,
    TableLookup,
    bytes_of,
)

# Lookups and gradients of servers that may have little memory for tables.
_LEAST_BYTES = 1 << 28


@final
class Contexts:
    """The open contexts of one server.

    Args:
        clock: Monotonic seconds, replaced in tests.
        max_bytes: Most bytes of their lookups and gradients, but for a least number.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, max_bytes: int = _LEAST_BYTES
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards all below
        self._open = ContextIndex(max(max_bytes, _LEAST_BYTES))
        self._tombstones = ContextTombstones()
        self._applied = ContextTombstones()

    def add_lookup(
        self, id_: context_pb2.ContextId, number: int, parts: list[TableLookup], size: int = 0
    ) -> None:
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
                self._open.grow(_key(id_), context, size - context.sizes.get(number, 0))
                context.sizes[number] = size

    def add_prefetch(
        self, id_: context_pb2.ContextId, number: int, ahead: PrefetchedLookup
    ) -> None:
        """Store the rows of a prefetch; a repeated one replaces the first.

        Raises:
            ContextReleased: The context has ended.
        """
        with self._lock:
            context = self._find(id_, create=True)
            former = context.prefetched.get(number)
            context.prefetched[number] = ahead
            before = 0 if former is None else former.size
            self._open.grow(_key(id_), context, ahead.size - before)

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
            if target is not None:
                self._open.check(_key(target), 0)
            taken = None if target is None else self._find(target, create=True)
            if taken is not None and number in taken.prefetched:
                return taken.prefetched[number]
            given = self._find(source, create=False)
            if source_number not in given.prefetched:
                raise _not_found(source, source_number)
            ahead = given.prefetched.pop(source_number)
            self._open.grow(_key(source), given, -ahead.size)
            if taken is not None and target is not None:
                taken.prefetched[number] = ahead
                taken.lookups[number] = ahead.parts
                self._open.grow(_key(target), taken, ahead.size)
            if not given.prefetched and not given.lookups:
                self._end(_key(source))
            return ahead

    def check(self, id_: context_pb2.ContextId, size: int = 0) -> None:
        """Raise if a context may not be used for one more lookup.

        Args:
            id_: The context.
            size: Bytes of the lookup.

        Raises:
            ContextReleased: It has ended.
            InvalidRequest: The id is incomplete.
            LimitExceeded: The contexts of its worker, or all, hold too much here.
        """
        key = _key(id_)
        with self._lock:
            if key not in self._open:
                self._check(id_)
            if not self._open.has_space(size):
                self._open.check(key, size)

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
                passes = context.returned.setdefault(number, {})
                if pass_number not in passes:
                    passes[pass_number] = grads
                    self._open.grow(_key(id_), context, bytes_of(grads))

    def check_gradients(self, id_: context_pb2.ContextId, grads: Collection[Array]) -> None:
        """Check that there is space for gradients, before they are copied.

        Raises:
            LimitExceeded: The contexts of the worker, or all, hold too much here.
        """
        with self._lock:
            self._open.check_bytes(_key(id_), bytes_of(grads))

    def check_staged(self, id_: context_pb2.ContextId, staged: int) -> None:
        """Check that the gradients of a context may wait for those of other ranks.

        Args:
            id_: The context.
            staged: Bytes that wait already.

        Raises:
            LimitExceeded: Too many wait.
        """
        with self._lock:
            held = self._open.get(_key(id_))
            if held is not None:
                self._open.bound.check(staged, more=held.size)

    def drop_passes(self, id_: context_pb2.ContextId, failed: Collection[int]) -> None:
        """Drop the gradients of backward passes that failed on another process."""
        with self._lock:
            held = self._open.get(_key(id_))
            if held is not None:
                self._open.grow(_key(id_), held, -held.drop(failed))

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
            self._applied.add(worker, incarnation, counter)
            self._tombstones.add(worker, incarnation, counter)

    def dump_applied(self) -> list[DedupeEntry]:
        """Return the ids of applied contexts, for a snapshot."""
        with self._lock:
            return self._applied.dump()

    def load_applied(self, marks: Sequence[DedupeEntry]) -> None:
        """Restore what `dump_applied` returned."""
        with self._lock:
            for worker, incarnation, floor, counters in marks:
                for kept in (self._applied, self._tombstones):
                    kept.load(worker, incarnation, floor, counters)

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
            self._applied.add(*_key(id_))
            return self._end(_key(id_)) or OpenContext()

    def release(self, context: context_pb2.ContextId) -> bool:
        """End a context; return whether it was open.

        Raises:
            InvalidRequest: The id is incomplete.
        """
        with self._lock:
            self._check_id(context)
            return self._end(_key(context)) is not None

    def release_all(self) -> None:
        """End every open context, when a run begins or rows are replaced."""
        with self._lock:
            for key in self._open:
                self._tombstones.add(*key)
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
            return sum(1 for _, context in self._open.items() if context.lookups)

    def release_idle(self, idle_s: float) -> int:
        """End the contexts unused for `idle_s`; return how many.

        Their worker died, or did not release them.
        """
        with self._lock:
            oldest = self._clock() - idle_s
            idle = [key for key, context in self._open.items() if context.used_at < oldest]
            for key in idle:
                self._end(key)
            return len(idle)

    def openers(self) -> dict[tuple[str, int], int]:
        """Return the number of open contexts by name and incarnation of their opener."""
        with self._lock:
            return self._open.openers()

    def drop_worker(self, name: str, incarnation: int) -> int:
        """End the contexts of a lost process; return how many."""
        with self._lock:
            gone = [key for key in self._open.of_worker(name) if key[1] == incarnation]
            for key in gone:
                self._end(key)
            return len(gone)

    def open_count(self) -> int:
        """Return the number of contexts open here."""
        with self._lock:
            return len(self._open)

    def _find(self, id_: context_pb2.ContextId, create: bool) -> OpenContext:
        key = _key(id_)
        held = self._open.get(key)
        if held is None:
            self._check(id_)
            if not create:
                return OpenContext()
            check_name("worker", id_.worker)
            self._drop_older_incarnations(id_)
            held = self._open.add(key)
        held.used_at = self._clock()
        return held

    def _drop_older_incarnations(self, id_: context_pb2.ContextId) -> None:
        """End the contexts that older incarnations of the process left."""
        for key in self._open.of_worker(id_.worker):
            if key[1] < id_.incarnation:
                self._end(key)

    def _end(self, key: ContextKey) -> OpenContext | None:
        """End a context; return it, or None if it was not open."""
        self._tombstones.add(*key)
        return self._open.pop(key)

    def _check_id(self, id_: context_pb2.ContextId) -> None:
        if not id_.worker or not id_.incarnation or not id_.counter:
            raise InvalidRequest("the context has no worker, incarnation or counter; set all three")
        if len(id_.worker) > limits.MAX_NAME_BYTES:
            check_name("worker", id_.worker)

    def _check(self, id_: context_pb2.ContextId) -> None:
        self._check_id(id_)
        if self._has_tombstone(id_):
            raise ContextReleased(f"context {_show(id_)} has ended; open a new one")

    def _was_applied(self, id_: context_pb2.ContextId) -> bool:
        return self._applied.has(*_key(id_))

    def _has_tombstone(self, id_: context_pb2.ContextId) -> bool:
        key = _key(id_)
        return key not in self._open and self._tombstones.has(*key)


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
