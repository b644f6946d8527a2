"""A block that ends when all calls that were begun in it have ended."""

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gradmesh.sdk.future import Future
from gradmesh.sdk.future import wait_all as wait_for_all

T = TypeVar("T")

_collected: contextvars.ContextVar[list[Future[Any]] | None] = contextvars.ContextVar(
    "gradmesh_collected", default=None
)


def collect(future: Future[T]) -> Future[T]:
    """Note a call for the block that it was begun in, if there is one."""
    futures = _collected.get()
    if futures is not None:
        futures.append(future)
    return future


@contextmanager
def wait_all() -> Iterator[list[Future[Any]]]:
    """Wait at the end of the block for every `rpc_async` and `remote` of it, also after an error.

    Raises:
        Exception: What went wrong with the first call that failed, unless the block itself raised.
    """
    futures: list[Future[Any]] = []
    before = _collected.set(futures)
    try:
        yield futures
    except BaseException:
        _collected.reset(before)
        for future in futures:
            future.exception()
        raise
    _collected.reset(before)
    wait_for_all(futures)
