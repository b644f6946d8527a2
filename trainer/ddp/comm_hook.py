"""The interface of communication hooks: hook(state, GradBucket) -> Future.

Continuations of a future run on the thread that waits for it: the reducer waits for its buckets in
order, so collectives that a continuation starts have the same order on all ranks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, final

from gradmesh.engine.autograd import RowGrad, Tensor
from gradmesh.engine.backend import Array
from gradmesh.trainer.process_group import ProcessGroup, Work


@final
class CommFuture:
    """The future of a value that is available once communication has finished.

    Public as `gm.ddp.Future`.

    Args:
        wait: Blocks until the value is available and returns it; called once.
    """

    __slots__ = ("_is_done", "_value", "_wait")

    def __init__(self, wait: Callable[[], Any]) -> None:
        self._wait: Callable[[], Any] | None = wait
        self._is_done = False
        self._value: Any = None

    @classmethod
    def done(cls, value: Any) -> CommFuture:
        """Return a future whose value is available already."""
        return cls(lambda: value)

    @classmethod
    def after(cls, work: Work, value: Any) -> CommFuture:
        """Return a future of a value that a collective fills in place."""

        def wait() -> Any:
            work.wait()
            return value

        return cls(wait)

    def then(self, function: Callable[[Any], Any]) -> CommFuture:
        """Return a future of function(value); the function may return a future, too."""

        def wait() -> Any:
            made = function(self.wait())
            return made.wait() if isinstance(made, CommFuture) else made

        return CommFuture(wait)

    def wait(self) -> Any:
        """Block until the value is available and return it.

        Raises:
            CollectiveTimeout: A rank did not take part in time.
            PeerLost: A rank left or died.
        """
        if not self._is_done:
            assert self._wait is not None
            self._value = self._wait()
            self._is_done, self._wait = True, None
        return self._value


@final
class GradBucket:
    """A bucket of gradients, not divided yet, in one contiguous buffer.

    The memory belongs to the reducer, which reuses it in the next pass.

    Args:
        index: The bucket's position in the order of launches.
        buffer: Flat array of all gradients; None for a sparse gradient.
        views: One view of the buffer for each parameter.
        leaves: The parameters.
        group: The ranks of the wrapper.
        is_last: Whether no bucket follows in this pass.
        rows: The sparse gradient, if it is one.
    """

    __slots__ = ("_buffer", "_group", "_index", "_is_last", "_leaves", "_rows", "_views")

    def __init__(
        self,
        index: int,
        buffer: Array | None,
        views: Sequence[Array],
        leaves: Sequence[Tensor],
        group: ProcessGroup,
        is_last: bool,
        rows: RowGrad | None = None,
    ) -> None:
        self._index = index
        self._buffer = buffer
        self._views = views
        self._leaves = leaves
        self._group = group
        self._is_last = is_last
        self._rows = rows

    def index(self) -> int:
        """Return the bucket's position in the order of launches."""
        return self._index

    def buffer(self) -> Any:
        """Return the flat array of all gradients, or the RowGrad of a sparse bucket."""
        return self._buffer if self._rows is None else self._rows

    def set_buffer(self, values: Array) -> None:
        """Replace the gradients by an array of the same size.

        Raises:
            ValueError: If the sizes differ, or the bucket is sparse.
        """
        if self._buffer is None or values.size != self._buffer.size:
            raise ValueError(f"a buffer of {values.size} elements does not fit {self!r}")
        self._buffer[...] = values.reshape(-1)

    def gradients(self) -> list[Any]:
        """Return one view of the buffer for each parameter, in the parameter's shape."""
        return list(self._views) if self._rows is None else [self._rows]

    def parameters(self) -> list[Tensor]:
        """Return the parameters whose gradients these are."""
        return list(self._leaves)

    def is_last(self) -> bool:
        """Return whether no bucket follows in this pass."""
        return self._is_last

    def is_sparse(self) -> bool:
        """Return whether `buffer` returns a RowGrad."""
        return self._rows is not None

    @property
    def group(self) -> ProcessGroup:
        """The ranks of the wrapper that made the bucket."""
        return self._group

    def __repr__(self) -> str:
        size = "rows" if self._buffer is None else f"{self._buffer.size} {self._buffer.dtype}"
        return f"GradBucket({self._index}, {size}, parameters={len(self._leaves)})"


def check_hook(hook: Any) -> None:
    """Raise if a hook cannot be called as hook(state, bucket) or has other annotations.

    Raises:
        TypeError: If it is not callable.
        ValueError: If its bucket or its result is annotated with another type.
    """
    if not callable(hook):
        raise TypeError(f"a communication hook must be callable, not {type(hook).__name__}")
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):
        return
    parameters = list(signature.parameters.values())
    if len(parameters) > 1:
        _check_annotation("bucket", parameters[1].annotation, GradBucket, "GradBucket")
    _check_annotation("result", signature.return_annotation, CommFuture, "Future")


def _check_annotation(what: str, annotation: Any, wanted: type, name: str) -> None:
    if annotation in (inspect.Parameter.empty, Any, wanted):
        return
    if isinstance(annotation, str) and annotation.split(".")[-1] in (name, wanted.__name__, "Any"):
        return
    raise ValueError(
        f"the {what} of a communication hook is a {name}, but annotated {annotation!r}"
    )


def bound_hook(state: Any, hook: Callable[[Any, GradBucket], Any]) -> Callable[..., CommFuture]:
    """Return a hook bound to its state, with a check of what it returns."""

    def run(bucket: GradBucket) -> CommFuture:
        made = hook(state, bucket)
        if not isinstance(made, CommFuture):
            raise RuntimeError(
                f"communication hook {hook_name(hook)} returned {type(made).__name__}; return a"
                " Future, such as Future.after(work, bucket.buffer())"
            )
        return made

    return run


def hook_name(hook: Any) -> str:
    """Return the name of a hook for the log."""
    return str(getattr(hook, "__qualname__", type(hook).__name__))
