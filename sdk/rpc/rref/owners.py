"""The owner's side of references: values kept for others, and who has a reference to them.

A value is kept while a reference to it is known, or while this process itself uses it. The owner
hears of each reference before its holder lets go of the one that it was made from, so a value never
goes while somebody can still ask for it.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias, final

from gradmesh.protos.errors import RefNotFound
from gradmesh.sdk.future import Future
from gradmesh.sdk.rpc.ids import GlobalId, IdCounter, WorkerId

# Only what comes late or again meets one, seconds after the deletion; of more than 5 MB of them a
# worker that makes many references would have no use.
_TOMBSTONES = 16_384
# A value that somebody asked for before its creation came, and whose creation never does.
_AWAITED_S = 600.0

IsGone: TypeAlias = Callable[[WorkerId], bool]


@final
class OwnedValue:
    """A value of this worker, or what went wrong when it was made.

    Attributes:
        key: Its name.
        outcome: The value, when it is there.
        forks: The references that others have, and who.
        begun: Whether somebody makes it.
    """

    __slots__ = ("__weakref__", "begun", "forks", "key", "outcome", "since")

    def __init__(self, key: GlobalId) -> None:
        self.key = key
        self.begun = False
        self.outcome: Future[Any] = Future()
        self.forks: dict[GlobalId, WorkerId] = {}
        self.since = time.monotonic()


@final
class OwnedValues:
    """All values that one worker keeps for others.

    Args:
        me: The worker.
        keys: Its count of names.
    """

    def __init__(self, me: WorkerId, keys: IdCounter) -> None:
        self._me = me
        self._keys = keys
        self._lock = threading.Lock()  # guards all below, and the forks of each value
        self._kept: dict[GlobalId, OwnedValue] = {}
        self._awaited: dict[GlobalId, OwnedValue] = {}
        self._gone: dict[GlobalId, None] = {}
        self._gone_forks: dict[GlobalId, None] = {}

    def begin(self, key: GlobalId, fork: GlobalId, holder: WorkerId) -> tuple[OwnedValue, bool]:
        """Make room for a value that is about to be made.

        Returns:
            Its room, and whether the caller is the one to make it.

        Raises:
            RefNotFound: It was deleted: this is late, or a late repetition.
        """
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                kept = self._awaited.get(key) or OwnedValue(key)
                if fork not in self._gone_forks:
                    kept.forks[fork] = holder
                # Whoever asked for it may have let go of it before this came.
                if key in self._gone or not kept.forks:
                    raise self._not_found(key)
                self._awaited.pop(key, None)
                self._kept[key] = kept
            first, kept.begun = not kept.begun, True
            return kept, first

    def reserve(self, key: GlobalId) -> OwnedValue:
        """Make room for a value that this worker asks itself to make."""
        kept = OwnedValue(key)
        with self._lock:
            kept.forks[key] = self._me
            self._kept[key] = kept
        return kept

    def give_up(self, kept: OwnedValue) -> None:
        """Forget a value whose creation was refused before it began."""
        with self._lock:
            if self._kept.get(kept.key) is kept:
                del self._kept[kept.key]

    def find(self, key: GlobalId) -> OwnedValue:
        """Return a value, or the room of one whose creation has not come yet.

        Raises:
            RefNotFound: It was deleted.
        """
        with self._lock:
            return self._room(key)

    def share(self, kept: OwnedValue, holder: WorkerId) -> GlobalId:
        """Note a new reference that goes to another worker; return its name."""
        fork = self._keys.new()
        with self._lock:
            # One whose creation has not come yet stays where the creation looks for it: it adds
            # the reference of its creator, and until then no deletion is the last.
            if self._awaited.get(kept.key) is not kept:
                self._gone.pop(kept.key, None)
                self._kept[kept.key] = kept
            kept.forks[fork] = holder
        return fork

    def fork(self, key: GlobalId, fork: GlobalId, holder: WorkerId) -> None:
        """Note a reference that a user passed on; again is no error.

        It may come before the creation of the value does.

        Raises:
            RefNotFound: The value was deleted.
        """
        with self._lock:
            if fork in self._gone_forks:
                return  # its holder has let go of it already
            self._room(key).forks[fork] = holder

    def delete(self, key: GlobalId, fork: GlobalId) -> None:
        """Forget a reference, and the value with the last one; again is no error."""
        with self._lock:
            _remember(self._gone_forks, fork)
            kept = self._kept.get(key)
            if kept is None:
                awaited = self._awaited.get(key)
                if awaited is not None:
                    awaited.forks.pop(fork, None)
                elif fork == key:
                    # The creation may still be on its way.
                    _remember(self._gone, key)
            elif kept.forks.pop(fork, None) is not None and not kept.forks:
                self._drop(key)

    def take_back(self, key: GlobalId, fork: GlobalId) -> None:
        """Forget a reference that this worker lent to itself, if it is one."""
        with self._lock:
            kept = self._kept.get(key) or self._awaited.get(key)
            mine = kept is not None and kept.forks.get(fork) == self._me
        if mine:
            self.delete(key, fork)

    def collect(self, is_gone: IsGone) -> int:
        """Forget the references of workers that are gone; return how many."""
        count = 0
        with self._lock:
            old = time.monotonic() - _AWAITED_S
            self._awaited = {k: kept for k, kept in self._awaited.items() if kept.since > old}
            holders = {holder for kept in self._kept.values() for holder in kept.forks.values()}
        gone = {holder for holder in holders if is_gone(holder)}
        with self._lock:
            for key, kept in list(self._kept.items()):
                lost = [fork for fork, holder in kept.forks.items() if holder in gone]
                count += len(lost)
                for fork in lost:
                    del kept.forks[fork]
                if lost and not kept.forks:
                    self._drop(key)
        return count

    def openers(self) -> dict[tuple[str, int], int]:
        """Return who has references, for the coordinator to say who of them is gone.

        It knows of members, too, that came and went before this worker heard of them. None of them
        counts as having opened a context by it.
        """
        others = self.holders() - {self._me}
        return {(other.name, other.incarnation): 0 for other in others if other.incarnation}

    def drop_worker(self, name: str, incarnation: int) -> int:
        """Forget the references of a process that is gone; return how many."""
        return self.collect(lambda holder: holder == (name, incarnation))

    def holders(self) -> set[WorkerId]:
        """Return everybody who has a reference."""
        with self._lock:
            return {holder for kept in self._kept.values() for holder in kept.forks.values()}

    def report(self) -> list[str]:
        """Return one line about each value that others have references to."""
        with self._lock:
            return [
                f"{kept.key} held by {', '.join(sorted({w.name for w in kept.forks.values()}))}"
                for kept in self._kept.values()
            ]

    def counts(self) -> dict[str, int]:
        """Return figures for `debug_info`."""
        with self._lock:
            return {
                "num_owner_rrefs": len(self._kept),
                "num_forks": sum(len(kept.forks) for kept in self._kept.values()),
                "num_pending_futures": len(self._awaited)
                + sum(not kept.outcome.done() for kept in self._kept.values()),
            }

    def __len__(self) -> int:
        return len(self._kept)

    def _room(self, key: GlobalId) -> OwnedValue:
        """Return a value, or the room of one whose creation has not come yet; the lock is held."""
        kept = self._kept.get(key)
        if kept is None:
            if key in self._gone or key[:2] == self._me:
                raise self._not_found(key)
            kept = self._awaited.setdefault(key, OwnedValue(key))
            if len(self._awaited) > _TOMBSTONES:
                del self._awaited[next(iter(self._awaited))]
        return kept

    def _drop(self, key: GlobalId) -> None:
        del self._kept[key]
        _remember(self._gone, key)

    def _not_found(self, key: GlobalId) -> RefNotFound:
        return RefNotFound(
            f"{self._me.name} keeps nothing for {key.worker}'s reference {key.counter}; it was "
            f"deleted, or {self._me.name} restarted",
            worker=self._me.name,
            creator=key.worker,
            counter=key.counter,
        )


def _remember(gone: dict[GlobalId, None], key: GlobalId) -> None:
    gone[key] = None
    if len(gone) > _TOMBSTONES:
        del gone[next(iter(gone))]
