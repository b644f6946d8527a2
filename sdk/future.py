"""A result that is there later.

There is no thread for each call. Where a call is under way, the thread that asks for the result
waits for it; only callbacks, `done` and short waits need help from another one. A future that a
user made is settled by whoever has its result.
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
"""How long a wait without a limit lasts on a future that a user made: nothing waits for ever."""


class FutureSource(Protocol[T_co]):
    """Something that is under way."""

    def finish(self) -> T_co:
        """Wait for it, until a deadline of its own; by one thread at a time."""

    def notify(self, ready: Callable[[], None]) -> None:
        """Call `ready` once, on a thread that may wait, about when `finish` would return.

        Called at most once.
        """

    def abandon(self) -> None:
        """Hear that nobody will ever ask; called instead of `finish` and `notify`."""


@final
class Future(Generic[T]):
    """A result that is there later.

    `Future()` makes one that `set_result` or `set_exception` settles.

    Args:
        source: What is under way, for futures of calls.
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
        self._turn = threading.Lock()  # held by the one that waits for the source
        self._over = False
        self._lock = threading.Lock()  # guards _callbacks, _asked, _waited and settling
        # Made by the first who waits without a source: most futures never need it.
        self._waited: threading.Event | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._asked = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def result(self, timeout_s: float | None = None) -> T:
        """Wait for the result.

        Args:
            timeout_s: How long; until the deadline of the call by default.

        Raises:
            DeadlineExceeded: It is not there yet; ask again.
            Exception: What went wrong, the same each time.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return cast(T, self._value)

    wait = result

    def value(self) -> T:
        """Return the result of a future that is done.

        Raises:
            RuntimeError: It is not.
            Exception: What went wrong.
        """
        if not self._over:
            raise RuntimeError("the future is not done yet; wait for it")
        return self.result()

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait for the end; return what went wrong, or None.

        Raises:
            DeadlineExceeded: The end is not there yet; ask again.
        """
        if self._over:
            return self._error
        if timeout_s is None and self._source is not None:
            self._resolve()
            return self._error
        return self._error_within(check_timeout(timeout_s, LONGEST_WAIT_S))

    def _error_within(self, limit_s: float) -> BaseException | None:
        """Wait for the end, `limit_s` at most; return the error, or None."""
        self._ask()
        if not self._await(limit_s):
            raise DeadlineExceeded(f"no answer within {limit_s:g} s; it is still under way")
        return self._error

    def _await(self, limit_s: float) -> bool:
        """Wait until the future is settled by somebody else; return whether it is."""
        with self._lock:
            if self._over:
                return True
            if self._waited is None:
                self._waited = threading.Event()
            waited = self._waited
        return waited.wait(limit_s)

    def done(self) -> bool:
        """Tell whether `result` returns or raises at once."""
        if not self._over:
            self._ask()
        return self._over

    def add_done_callback(self, function: "Callable[[Future[T]], object]") -> None:
        """Call `function(self)` at the end, on another thread; at once if the end has come.

        It runs in the contextvars of this moment. What it raises is logged.
        """
        if not callable(function):
            raise TypeError(f"a callback must be a function, not {type(function).__name__}")
        context = contextvars.copy_context()

        def call() -> None:
            try:
                context.run(function, self)
            except Exception:
                # Nobody else could hear of it, and the other callbacks have done no wrong.
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
        """Return a future of what `function(self)` returns or raises, called at the end."""
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
        """Settle a future that a user made.

        Raises:
            RuntimeError: It is settled, or of a call.
        """
        self._set(value, None)

    def set_exception(self, error: BaseException) -> None:
        """Settle a future that a user made with what went wrong.

        Raises:
            RuntimeError: It is settled, or of a call.
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
        """Wait for the source, on this thread; returns when the future is settled."""
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
        """Note the end; return the callbacks that are to be called, or None if it was noted."""
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
        """Have the source waited for by somebody else, once."""
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
    """Return a future that is over, with an error like this one that keeps no frame alive."""
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
    """Return a future of the futures themselves, done when all of them are."""
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
    """Wait until all are done; return their results in order.

    Args:
        futures: What to wait for.
        timeout_s: How long, all together; until their own deadlines by default.

    Raises:
        DeadlineExceeded: Some are not done in time.
        Exception: What went wrong with the first of them that failed, in order; after all ended.
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
    """Something under way that a function waits for.

    Args:
        finish: Waits for it; called once. It has a deadline of its own.
        resolver: Helps out with callbacks.
    """

    __slots__ = ("_resolver", "finish")

    def __init__(self, finish: Callable[[], T], resolver: "FutureResolver") -> None:
        self.finish = finish
        self._resolver = resolver

    def notify(self, ready: Callable[[], None]) -> None:
        """Have the shared thread wait."""
        self._resolver.put(ready)

    def abandon(self) -> None:
        """Let go; what was under way ends by itself."""


@final
class FutureResolver:
    """One thread that waits for what nobody else waits for, one after the other."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards _thread and _closed
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, wait: Callable[[], None]) -> None:
        """Call a function that waits, soon; the thread starts with the first one."""
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
        """End the thread once all it has is over; may be called twice."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(timeout_s)
