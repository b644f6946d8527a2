"""Threads that serve gRPC calls, and how callers share them."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias, final

from gradmesh.sdk.transport.call import Caller

_Work: TypeAlias = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]

# Role and name of a caller; None without authentication, where all callers look the same.
_Key: TypeAlias = tuple[str, str] | None


def share_of(threads: int) -> int:
    """Return how many of the threads one caller may occupy.

    More than half, which is how many calls servicers let wait at once: a call that ends such waits
    must find a thread.
    """
    return min(threads, max(threads // 2 + 1, threads - max(1, threads // 8)))


@final
class InlinePool(ThreadPoolExecutor):
    """Runs calls on the thread that submits them, which is the one on which gRPC polls.

    For responses that neither wait nor read the request: they occupy no thread and no queue.
    """

    def __init__(self) -> None:
        super().__init__(1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Run the function and return its outcome."""
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


@final
class CallPool(ThreadPoolExecutor):
    """Threads of calls, of which one authenticated caller gets a share.

    gRPC intercepts a call and submits it right afterwards on the same thread, its only polling one.
    So `take` names the caller of the next `submit`. Calls beyond the share of their caller wait in
    a queue of their own, so that they delay no other caller.

    Args:
        threads: Calls served at once.
        name: Prefix of the threads' names.
        queue: Most calls that wait for a thread; one caller may occupy half of the places.
        share: Threads that one caller may occupy; by default most of them.
    """

    def __init__(self, threads: int, name: str, *, queue: int, share: int | None = None) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self._share = share or share_of(threads)
        self._most = threads + queue
        self._most_of_one = self._share + queue // 2
        self._lock = threading.Lock()  # guards all below
        self._total = 0
        self._held: dict[_Key, int] = {}  # waiting or served, by caller
        self._parked: dict[_Key, deque[_Work]] = {}
        self._next: _Key = None

    def take(self, caller: Caller) -> bool:
        """Admit the call that is submitted next; return False if too many wait already."""
        key = (caller.role, caller.name) if caller.is_authenticated else None
        with self._lock:
            if self._total >= self._most:
                return False
            if key is not None:
                held = self._held.get(key, 0)
                if held >= self._most_of_one:
                    return False
                self._held[key] = held + 1
            self._total += 1
            self._next = key
        return True

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Run a call that was admitted when its caller has a thread."""
        key = self._next
        if key is not None:
            with self._lock:
                if self._held[key] > self._share:
                    future: Future[Any] = Future()
                    self._parked.setdefault(key, deque()).append((future, fn, args))
                    return future
        return super().submit(self._serve, key, None, fn, args)

    def _serve(
        self,
        key: _Key,
        future: "Future[Any] | None",
        fn: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        try:
            fn(*args)
        finally:
            self._end(key)
            if future is not None:
                future.set_result(None)

    def _end(self, key: _Key) -> None:
        """Give the thread of a call that has ended to the next of its caller."""
        with self._lock:
            self._total -= 1
            if key is None:
                return
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]
            parked = self._parked.get(key)
            if not parked:
                return
            work = parked.popleft()
            if not parked:
                del self._parked[key]
        try:
            # Behind the calls of others that wait for a thread.
            super().submit(self._serve, key, *work)
        except RuntimeError:  # the pool is shut down
            work[0].cancel()
