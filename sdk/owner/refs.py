"""Values that a process keeps for others, each made once however often it is asked for."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeAlias, final

from gradmesh.protos.errors import DeadlineExceeded
from gradmesh.sdk.transport.deadline import Deadline

RefKey: TypeAlias = tuple[str, int, int]
"""Creator, its incarnation, its count."""

_TOMBSTONES = 65_536


@final
class Refs:
    """The kept values by reference.

    A deleted reference leaves a tombstone, so that a late repetition of its creation does not make
    the value again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _kept and _deleted
        self._kept: dict[RefKey, Future[Any]] = {}
        self._deleted: dict[RefKey, None] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._kept)

    def create(self, key: RefKey, make: Callable[[], Any], deadline: Deadline) -> None:
        """Keep what `make` returns; whoever asks while it runs waits for the same outcome.

        Raises:
            DeadlineExceeded: Another call is still making the value.
            BaseException: What `make` raised; nothing is kept then.
        """
        with self._lock:
            if key in self._deleted:
                return
            held = self._kept.get(key)
            mine = self._kept.setdefault(key, Future())
        if held is not None:
            _outcome(held, deadline)
            return
        try:
            mine.set_result(make())
        except BaseException as error:
            with self._lock:
                if self._kept.get(key) is mine:
                    del self._kept[key]
            mine.set_exception(error)
            raise

    def fetch(self, key: RefKey, deadline: Deadline) -> Any:
        """Return a kept value, waiting for one that is being made.

        Raises:
            KeyError: There is none.
            DeadlineExceeded: It is still being made.
        """
        with self._lock:
            held = self._kept[key]
        return _outcome(held, deadline)

    def delete(self, key: RefKey) -> None:
        """Drop a value, or nothing."""
        with self._lock:
            self._kept.pop(key, None)
            self._deleted[key] = None
            if len(self._deleted) > _TOMBSTONES:
                del self._deleted[next(iter(self._deleted))]


def _outcome(held: Future[Any], deadline: Deadline) -> Any:
    wait([held], deadline.remaining_s())
    if not held.done():
        raise DeadlineExceeded("the value is still being made; allow more time")
    return held.result()
