"""The owner's side of references: owned values, and which workers hold references to them.

A value lives while a reference to it is registered, or while this process itself uses it. The owner
registers each reference before its sender releases the one that it was made from, so a value is
never deleted while a worker can still fetch it.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias, final

from gradmesh.protos import limits
from gradmesh.protos.bound import Tally
from gradmesh.protos.errors import Forbidden, RefNotFound
from gradmesh.protos.limits import check_text
from gradmesh.sdk.future import Future
from gradmesh.sdk.rpc.ids import GlobalId, IdCounter, WorkerId

# Tombstones only refuse late and repeated messages, seconds after a deletion; all of them take
# at most 5 MB.
_TOMBSTONES = 16_384
# Lifetime of an entry that was requested before its creation arrived, if that never arrives; and of
# an unused reference whose holder never was a member, so that its loss cannot be detected.
_AWAITED_S = 600.0

IsGone: TypeAlias = Callable[[WorkerId], bool]


@final
class OwnedValue:
    """A value of this worker, or the error of its creation.

    Attributes:
        key: Its name.
        outcome: Future of the value.
        forks: The references of other workers, and the holders of each: one, unless a worker
            registered a reference of another one.
        begun: Whether its creation has started.
        since: When it was made, or last asked for.
    """

    __slots__ = ("__weakref__", "begun", "forks", "key", "outcome", "since")

    def __init__(self, key: GlobalId) -> None:
        self.key = key
        self.begun = False
        self.outcome: Future[Any] = Future()
        self.forks: dict[GlobalId, tuple[WorkerId, ...]] = {}
        self.since = time.monotonic()

    def add(self, fork: GlobalId, holder: WorkerId) -> None:
        """Register a reference; idempotent."""
        held = self.forks.get(fork, ())
        if holder not in held:
            self.forks[fork] = (*held, holder)

    def remove(self, fork: GlobalId, sender: WorkerId | None) -> bool:
        """Delete a reference of a worker, or of any if it is None; return whether it was held.

        Raises:
            Forbidden: Only other workers hold it.
        """
        held = self.forks.get(fork)
        if held is None:
            return False
        left = () if sender is None else tuple(h for h in held if not _is_same(h, sender))
        if sender is not None and left == held:
            raise _not_holder(sender, held[0])
        if left:
            self.forks[fork] = left
        else:
            del self.forks[fork]
        return True


@final
class OwnedValues:
    """All values that one worker owns for others.

    Args:
        me: The worker.
        keys: Generates its ids.
    """

    def __init__(self, me: WorkerId, keys: IdCounter) -> None:
        self._me = me
        self._keys = keys
        self._lock = threading.Lock()  # guards all below, and the forks of each value
        self._kept: dict[GlobalId, OwnedValue] = {}
        self._awaited: dict[GlobalId, OwnedValue] = {}
        # By the name of the holder, and of the creator; references of this worker do not count.
        self._held = Tally(limits.REFERENCES)
        self._expected = Tally(limits.AWAITED)
        self._tombstones: dict[GlobalId, WorkerId | None] = {}
        # The worker that deleted each reference; None where workers are not authenticated.
        self._fork_tombstones: dict[GlobalId, WorkerId | None] = {}

    def begin(self, key: GlobalId, fork: GlobalId, holder: WorkerId) -> tuple[OwnedValue, bool]:
        """Add the entry of a value that is about to be created.

        Returns:
            The entry, and whether the caller must create the value.

        Raises:
            RefNotFound: It was deleted: the request is late or repeated.
            LimitExceeded: The holder, or all together, have too many references.
        """
        _check_names(key, fork, holder)
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                kept = self._awaited.get(key) or OwnedValue(key)
                if not self._was_deleted(fork, holder) and key not in self._tombstones:
                    self._register(kept, fork, holder)
                # Its references may have been deleted before the creation arrived.
                if key in self._tombstones or not kept.forks:
                    raise self._not_found(key)
                self._unexpect(key)
                self._kept[key] = kept
            first, kept.begun = not kept.begun, True
            return kept, first

    def reserve(self, key: GlobalId) -> OwnedValue:
        """Add the entry of a value that this worker creates for itself."""
        kept = OwnedValue(key)
        with self._lock:
            kept.add(key, self._me)
            self._kept[key] = kept
        return kept

    def give_up(self, kept: OwnedValue) -> None:
        """Remove a value whose creation was refused before it started."""
        with self._lock:
            if self._kept.get(kept.key) is kept:
                del self._kept[kept.key]
                self._unregister_all(kept)

    def _register(self, kept: OwnedValue, fork: GlobalId, holder: WorkerId) -> None:
        """Add a reference to a value; the lock is held.

        Raises:
            LimitExceeded: There are too many.
        """
        if holder in kept.forks.get(fork, ()):
            return
        if holder != self._me:
            self._held.check(holder.name)
            self._held.add(holder.name)
        kept.add(fork, holder)

    def _unregister(self, kept: OwnedValue, fork: GlobalId, sender: WorkerId | None = None) -> bool:
        """Remove a reference as `OwnedValue.remove` does; the lock is held."""
        before = kept.forks.get(fork, ())
        was_held = kept.remove(fork, sender)
        left = kept.forks.get(fork, ())
        for holder in before:
            if holder not in left and holder != self._me:
                self._held.remove(holder.name)
        return was_held

    def _unregister_all(self, kept: OwnedValue) -> None:
        for fork in list(kept.forks):
            self._unregister(kept, fork)

    def _unexpect(self, key: GlobalId) -> OwnedValue | None:
        """Remove the entry of a value whose creation had not arrived; the lock is held."""
        awaited = self._awaited.pop(key, None)
        if awaited is not None:
            self._expected.remove(key.worker)
        return awaited

    def find(self, key: GlobalId) -> OwnedValue:
        """Return a value, or the entry of one whose creation has not arrived yet.

        Raises:
            RefNotFound: It was deleted.
            LimitExceeded: Too many are awaited.
        """
        with self._lock:
            found = self._entry(key)
            found.since = time.monotonic()
            return found

    def share(self, kept: OwnedValue, holder: WorkerId) -> GlobalId:
        """Register a new reference for another worker; return its id.

        Raises:
            LimitExceeded: It has too many already.
        """
        fork = self._keys.new()
        with self._lock:
            self._register(kept, fork, holder)
            # A value whose creation has not arrived stays in _awaited, where the creation looks for
            # it and adds the creator's reference; until then no deletion is the last.
            if self._awaited.get(kept.key) is not kept:
                self._tombstones.pop(kept.key, None)
                self._kept[kept.key] = kept
        return fork

    def fork(self, key: GlobalId, fork: GlobalId, holder: WorkerId) -> None:
        """Register a reference that a user passed on; idempotent.

        It may arrive before the creation of the value.

        Raises:
            RefNotFound: The value was deleted.
            LimitExceeded: The holder, or all together, have too many references.
        """
        _check_names(key, fork, holder)
        with self._lock:
            if not self._was_deleted(fork, holder):
                self._register(self._entry(key), fork, holder)

    def delete(self, key: GlobalId, fork: GlobalId, sender: WorkerId | None = None) -> None:
        """Delete a reference, and the value with the last one; idempotent.

        Args:
            key: Name of the value.
            fork: Name of the reference.
            sender: The worker that deletes it, if workers are authenticated: its deletion of a
                reference that is not registered yet applies to its own only.

        Raises:
            Forbidden: Another worker holds the reference.
        """
        with self._lock:
            kept = self._kept.get(key) or self._awaited.get(key)
            was_held = kept is not None and self._unregister(kept, fork, sender)
            _add_tombstone(self._fork_tombstones, fork, sender)
            if kept is None:
                # The creation may still arrive.
                if fork == key and sender in (None, key[:2]):
                    _add_tombstone(self._tombstones, key, sender)
            elif was_held and not kept.forks and key in self._kept:
                self._drop(key)

    def _was_deleted(self, fork: GlobalId, holder: WorkerId) -> bool:
        """Return whether the holder of a reference has deleted it already."""
        return fork in self._fork_tombstones and self._fork_tombstones[fork] in (None, holder)

    def take_back(self, key: GlobalId, fork: GlobalId) -> None:
        """Delete a reference that this worker sent to itself, if it is one."""
        with self._lock:
            kept = self._kept.get(key) or self._awaited.get(key)
            mine = kept is not None and self._me in kept.forks.get(fork, ())
        if mine:
            self.delete(key, fork, self._me)

    def expire(self, now: float | None = None) -> int:
        """Remove the entries whose creation never arrived; return how many are left."""
        with self._lock:
            old = (time.monotonic() if now is None else now) - _AWAITED_S
            for key in [k for k, kept in self._awaited.items() if kept.since <= old]:
                expired = self._unexpect(key)
                if expired is not None:
                    self._unregister_all(expired)
            return len(self._awaited)

    def collect(
        self,
        is_gone: IsGone,
        is_stranger: IsGone = lambda holder: False,
        now: float | None = None,
    ) -> int:
        """Delete the references of workers that are gone; return how many.

        Args:
            is_gone: Whether a process was a member and no longer is.
            is_stranger: Whether it never was one: what it holds is deleted when it is unused for
                long.
            now: The time, for tests.
        """
        self.expire(now)
        count = 0
        holders = self.holders()
        gone = {holder for holder in holders if is_gone(holder)}
        strangers = {holder for holder in holders - gone if is_stranger(holder)}
        old = (time.monotonic() if now is None else now) - _AWAITED_S
        with self._lock:
            for key, kept in list(self._kept.items()):
                unused = strangers if kept.since <= old else ()
                lost = [
                    (fork, holder)
                    for fork, held in kept.forks.items()
                    for holder in held
                    if holder in gone or holder in unused
                ]
                count += len(lost)
                for fork, holder in lost:
                    self._unregister(kept, fork, holder)
                if lost and not kept.forks:
                    self._drop(key)
        return count

    def openers(self) -> dict[tuple[str, int], int]:
        """Return the holders of references, with 0 contexts each, to report in heartbeats.

        The coordinator replies which of them are gone, also members that this worker never saw in
        a member list.
        """
        others = self.holders() - {self._me}
        return {(other.name, other.incarnation): 0 for other in others if other.incarnation}

    def drop_worker(self, name: str, incarnation: int) -> int:
        """Delete the references of a process that is gone; return how many."""
        return self.collect(lambda holder: holder == (name, incarnation))

    def holders(self) -> set[WorkerId]:
        """Return all workers that hold a reference."""
        with self._lock:
            return {
                holder
                for kept in self._kept.values()
                for held in kept.forks.values()
                for holder in held
            }

    def report(self) -> list[str]:
        """Return one line about each value that other workers hold references to."""
        with self._lock:
            named = [
                (kept.key, sorted({w.name for held in kept.forks.values() for w in held}))
                for kept in self._kept.values()
            ]
        return [f"{key} held by {', '.join(names)}" for key, names in named]

    def counts(self) -> dict[str, int]:
        """Return counters for `debug_info`."""
        with self._lock:
            return {
                "num_owner_rrefs": len(self._kept),
                "num_forks": sum(len(h) for k in self._kept.values() for h in k.forks.values()),
                "num_pending_futures": len(self._awaited)
                + sum(not kept.outcome.done() for kept in self._kept.values()),
            }

    def __len__(self) -> int:
        return len(self._kept)

    def _entry(self, key: GlobalId) -> OwnedValue:
        """Return a value, or the entry of one whose creation has not arrived; the lock is held."""
        kept = self._kept.get(key)
        if kept is None:
            if key in self._tombstones or key[:2] == self._me:
                raise self._not_found(key)
            kept = self._awaited.get(key)
            if kept is None:
                check_text("name of a creator", key.worker, limits.MAX_NAME_BYTES)
                self._expected.check(key.worker)
                self._expected.add(key.worker)
                kept = self._awaited[key] = OwnedValue(key)
        return kept

    def _drop(self, key: GlobalId) -> None:
        del self._kept[key]
        _add_tombstone(self._tombstones, key, None)

    def _not_found(self, key: GlobalId) -> RefNotFound:
        return RefNotFound(
            f"{self._me.name} keeps nothing for {key.worker}'s reference {key.counter}; it was "
            f"deleted, or {self._me.name} restarted",
            worker=self._me.name,
            creator=key.worker,
            counter=key.counter,
        )


def _check_names(key: GlobalId, fork: GlobalId, holder: WorkerId) -> None:
    """Check the names that an entry keeps.

    Raises:
        LimitExceeded: One is too long.
    """
    for name in (key.worker, fork.worker, holder.name):
        if len(name) > limits.MAX_NAME_BYTES:
            check_text("name of a worker", name, limits.MAX_NAME_BYTES)


def _is_same(one: WorkerId, other: WorkerId) -> bool:
    """Return whether two ids may be of one process; the incarnation 0 stands for any."""
    unknown = 0 in (one.incarnation, other.incarnation)
    return one.name == other.name and (unknown or one.incarnation == other.incarnation)


def _not_holder(sender: WorkerId, holder: WorkerId) -> Forbidden:
    return Forbidden(
        f"{sender.name!r} may not change a reference that {holder.name!r} holds; use its own",
        worker=sender.name,
        holder=holder.name,
    )


def _add_tombstone(
    gone: dict[GlobalId, WorkerId | None], key: GlobalId, sender: WorkerId | None
) -> None:
    gone[key] = sender
    if len(gone) > _TOMBSTONES:
        del gone[next(iter(gone))]
