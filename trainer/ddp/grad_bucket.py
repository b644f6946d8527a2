"""GradBucket: what a communication hook is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from gradmesh.engine.autograd import RowGrad, Tensor
from gradmesh.engine.backend import Array
from gradmesh.trainer.process_group import ProcessGroup


@final
class GradBucket:
    """Gradients of some parameters, not yet divided, in one run of memory.

    The memory belongs to the reducer and is used again in the next pass.

    Args:
        index: The bucket's place in the order of launches.
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
        """Return the bucket's place in the order of launches."""
        return self._index

    def buffer(self) -> Any:
        """Return the flat array of all gradients, or the RowGrad of a sparse bucket."""
        return self._buffer if self._rows is None else self._rows

    def set_buffer(self, values: Array) -> None:
        """Replace the gradients by others of the same number.

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
        """Tell whether no bucket follows in this pass."""
        return self._is_last

    def is_sparse(self) -> bool:
        """Tell whether `buffer` returns a RowGrad."""
        return self._rows is not None

    @property
    def group(self) -> ProcessGroup:
        """The ranks of the wrapper that made the bucket."""
        return self._group

    def __repr__(self) -> str:
        size = "rows" if self._buffer is None else f"{self._buffer.size} {self._buffer.dtype}"
        return f"GradBucket({self._index}, {size}, parameters={len(self._leaves)})"
