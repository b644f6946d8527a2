"""Futures: results of calls under way, and of functions that reply later.

There is no thread for each call. The thread that asks for the result waits for it; only callbacks,
`done` and waits with a timeout use another one. A future that a user made is completed by
`set_result` or `set_exception`.
"""

import contextvars
import copy
import logging
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast, final

from gradmesh.protos.errors import DeadlineExceeded
from gradmesh.sdk.transport.deadline import Deadline, check_timeout

_log = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")

LONGEST_WAIT_S = 3600.0
"""Longest wait without a timeout on a future that a user made."""


class FutureSource(Protocol[T_co]):
    """A call under way, or another operation that will have a result."""

    def finish(self) -> T_co:
        """Wait for it, until a deadline of its own; by one thread at a time."""

    def notify(self, ready: Callable[[], None]) -> None:
        """Call `ready` once, on a thread that may wait, about when `finish` would return.

        Called at most once.
        """

    def abandon(self) -> None:
        """Drop the result; called instead of `finish` and `notify`, when the future is gone."""


@final
class Future(Generic[T]):
    """The result of an operation that has not completed yet.

    `Future()` makes one that `set_result` or `set_exception` completes.

    Args:
        source: The call under way, for futures of calls.
    """

    __slots__ = (
        "__weakref__",
        "_asked",
        "_callbacks",
        "_error",
        "_lock",
        "_over",
        "_source",
        "_turn",
        "_value",
        "_waited",
    )

    def __init__(self, source: FutureSource[T] | None = None) -> None:
        self._source = source
        self._turn = threading.Lock()  # held by the thread that waits for the source
        self._over = False
        self._lock = threading.Lock()  # guards _callbacks, _asked, _waited and settling
        # Made by the first who waits without a source: most futures never need it.
        self._waited: threading.Event | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._asked = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def result(self, timeout_s: float | None = None) -> T:
        """Wait for the result and return it.

        Args:
            timeout_s: How long; until the deadline of the call by default.

        Raises:
            DeadlineExceeded: It has not completed yet; wait again.
            Exception: The error of the operation, the same each time.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return cast(T, self._value)

    wait = result

    def value(self) -> T:
        """Return the result of a completed future.

        Raises:
            RuntimeError: It has not completed.
            Exception: The error of the operation.
        """
        if not self._over:
            raise RuntimeError("the future is not done yet; wait for it")
        return self.result()

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait for completion; return the error, or None.

        Raises:
            DeadlineExceeded: It has not completed yet; wait again.
        """
        limit_s = check_timeout(timeout_s, LONGEST_WAIT_S)
        if self._over:
            return self._error
        if timeout_s is None and self._source is not None:
            self._resolve()
            return self._error
        return self._error_within(limit_s)

    def _error_within(self, limit_s: float) -> BaseException | None:
        """Wait for completion, `limit_s` at most; return the error, or None."""
        self._ask()
        if not self._await(limit_s):
            raise DeadlineExceeded(f"no answer within {limit_s:g} s; it is still under way")
        return self._error

    def _await(self, limit_s: float) -> bool:
        """Wait until another thread has completed the future; return whether it has."""
        with self._lock:
            if self._over:
                return True
            if self._waited is None:
                self._waited = threading.Event()
            waited = self._waited
        return waited.wait(limit_s)

    def done(self) -> bool:
        """Return whether the future has completed, with a result or an error."""
        if not self._over:
            self._ask()
        return self._over

    def add_done_callback(self, function: "Callable[[Future[T]], object]") -> None:
        """Call `function(self)` on completion, on another thread; at once if already completed.

        It runs with the contextvars of this call. An exception that it raises is logged.
        """
        if not callable(function):
            raise TypeError(f"a callback must be a function, not {type(function).__name__}")
        context = contextvars.copy_context()

        def call() -> None:
            try:
                context.run(function, self)
            except Exception:
                # There is no caller to raise it to, and the other callbacks must run.
                _log.exception("a callback failed")

        with self._lock:
            waiting = not self._over
            if waiting:
                self._callbacks.append(call)
        if waiting:
            self._ask()
        else:
            call()

    def then(self, function: "Callable[[Future[T]], U]") -> "Future[U]":
        """Return a future of the result of `function(self)`, called on completion."""
        if not callable(function):
            raise TypeError(f"a callback must be a function, not {type(function).__name__}")
        following: Future[U] = Future()

        def follow(this: Future[T]) -> None:
            try:
                value = function(this)
            except Exception as error:
                following.set_exception(error)
            else:
                following.set_result(value)

        self.add_done_callback(follow)
        return following

    def set_result(self, value: T) -> None:
        """Complete a future that a user made with its result.

        Raises:
            RuntimeError: It has completed, or is the future of a call.
        """
        self._set(value, None)

    def set_exception(self, error: BaseException) -> None:
        """Complete a future that a user made with an error.

        Raises:
            RuntimeError: It has completed, or is the future of a call.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"expected an exception, not {type(error).__name__}")
        self._set(None, error)

    def _set(self, value: T | None, error: BaseException | None) -> None:
        callbacks = None if self._source is not None else self._settle(value, error)
        if callbacks is None:
            raise RuntimeError("the future has a result already, or gets one from its call")
        for call in callbacks:
            call()

    def _resolve(self) -> None:
        """Wait for the source on this thread, and complete the future."""
        with self._turn:
            source = self._source
            if source is None:
                return
            value: T | None = None
            error: Exception | None = None
            try:
                value = source.finish()
            except Exception as failure:
                error = failure
            callbacks = self._settle(value, error)
            self._source = None
        for call in callbacks or ():
            call()

    def _settle(
        self, value: T | None, error: BaseException | None
    ) -> list[Callable[[], object]] | None:
        """Complete the future; return the callbacks to call, or None if it had completed."""
        with self._lock:
            if self._over:
                return None
            self._value, self._error = value, error
            self._over = True
            callbacks, self._callbacks = self._callbacks, []
            if self._waited is not None:
                self._waited.set()
        return callbacks

    def _ask(self) -> None:
        """Have another thread wait for the source, once."""
        with self._lock:
            source = self._source
            first, self._asked = not self._asked, True
        if first and source is not None:
            source.notify(self._resolve)

    def __del__(self) -> None:
        source = getattr(self, "_source", None)
        # At the end of the process no thread starts any more; waiting for one would hang.
        if source is not None and not self._asked and not sys.is_finalizing():
            source.abandon()

    def __repr__(self) -> str:
        state = "under way" if not self._over else "failed" if self._error else "done"
        return f"Future({state})"


def failed(error: BaseException) -> Future[Any]:
    """Return a failed future, with an error like this one that keeps no frame alive."""
    future: Future[Any] = Future()
    future.set_exception(without_frames(error))
    return future


def without_frames(error: BaseException) -> BaseException:
    """Return an error like this one that keeps nothing alive.

    The frames that an error came through use the arguments of the call, such as the very reference
    that it is about: kept with it, they would be its last user for ever.
    """
    try:
        return copy.copy(error)
    except Exception:  # a user's exception that cannot be made from its arguments
        return RuntimeError(f"{type(error).__name__}: {error}")


def collect_all(futures: Sequence[Future[T]]) -> Future[list[Future[T]]]:
    """Return a future of the futures themselves, which completes when all of them have."""
    every = list(futures)
    together: Future[list[Future[T]]] = Future()
    if not every:
        together.set_result(every)
        return together
    lock = threading.Lock()  # guards left
    left = len(every)

    def one(_: Future[T]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            together.set_result(every)

    for future in every:
        future.add_done_callback(one)
    return together


def wait_all(futures: Sequence[Future[Any]], timeout_s: float | None = None) -> list[Any]:
    """Wait until all have completed; return their results in order.

    Args:
        futures: The futures.
        timeout_s: How long, all together; until their own deadlines by default.

    Raises:
        DeadlineExceeded: Some are not done in time.
        Exception: The error of the first failed one in order, after all have completed.
    """
    deadline = None if timeout_s is None else Deadline.within(timeout_s, LONGEST_WAIT_S)
    first: BaseException | None = None
    for place, future in enumerate(futures):
        try:
            if deadline is None:
                error = future.exception()
            else:
                error = future._error_within(deadline.remaining_s())
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"{len(futures) - place} of {len(futures)} calls were not done within {timeout_s} s"
            ) from None
        first = first or error
    if first is not None:
        raise first
    return [future.result() for future in futures]


@final
class WaitedSource(Generic[T]):
    """An operation under way that a function waits for.

    Args:
        finish: Waits for it; called once. It has a deadline of its own.
        resolver: Waits where only callbacks need the result.
    """

    __slots__ = ("_resolver", "finish")

    def __init__(self, finish: Callable[[], T], resolver: "FutureResolver") -> None:
        self.finish = finish
        self._resolver = resolver

    def notify(self, ready: Callable[[], None]) -> None:
        """Have the shared thread wait."""
        self._resolver.put(ready)

    def abandon(self) -> None:
        """Do nothing: the operation ends by itself."""


@final
class FutureResolver:
    """One thread that waits for the operations that no other thread waits for, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards _thread and _closed
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, wait: Callable[[], None]) -> None:
        """Queue a function that waits; the thread starts with the first one."""
        with self._lock:
            if not self._closed:
                self._queue.put(wait)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="futures", daemon=True)
                    self._thread.start()
                return
        # Its connection is closed, so this ends at once.
        wait()

    def _run(self) -> None:
        while (wait := self._queue.get()) is not None:
            wait()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread after everything queued; may be called twice."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(timeout_s)
