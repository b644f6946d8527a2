"""Embedding layers of click models: rows in this process, or rows of the mesh's tables."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import Tensor, empty
from gradmesh.engine.autograd.ops import embedding_bag, take_rows
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import Module, Parameter, init
from gradmesh.sdk.nn.remote_embedding import RemoteEmbedding
from gradmesh.sdk.nn.remote_embedding_bag import RemoteEmbeddingBag
from gradmesh.sdk.table.table import Table
from gradmesh.trainer.data.samples import Fields


@final
class LocalEmbedding(Module):
    """One table for each feature, all in one matrix, with dense gradients.

    Args:
        rows: How many rows each feature's table has.
        dim: Length of a row.
        hots: How many ids of each feature a sample has; their rows are summed. One each if None.
        bound: Initial values are uniform in ±bound; 1/sqrt(dim) if None.
        generator: Where initial values come from; the default stream if None.
    """

    weight: Parameter

    def __init__(
        self,
        rows: Sequence[int],
        dim: int,
        *,
        hots: Sequence[int] | None = None,
        bound: float | None = None,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.rows = tuple(rows)
        counts = (1,) * len(self.rows) if hots is None else tuple(hots)
        self.offsets = np.cumsum([0, *self.rows], dtype=np.int64)
        # Of each column of the ids: its table's rows, and where they begin in the matrix.
        self._limits = np.repeat(np.array(self.rows, np.int64), counts)
        self._begins = np.repeat(self.offsets[:-1], counts)
        self._starts = np.cumsum([0, *counts[:-1]], dtype=np.int64) if max(counts) > 1 else None
        self.weight = Parameter(empty(sum(self.rows), dim))
        spread = dim**-0.5 if bound is None else bound
        init.uniform_(self.weight, -spread, spread, generator)

    def table(self, feature: int) -> Any:
        """Return the rows of one feature's table, a view [rows, dim]."""
        return self.weight.data[self.offsets[feature] : self.offsets[feature + 1]]

    def forward(self, ids: Any) -> Tensor:
        """Look rows up: int64 [batch, ids of a sample] gives [batch, features, dim].

        Raises:
            IndexError: An id is not a row of its feature's table.
        """
        array = np.asarray(ids.data if isinstance(ids, Tensor) else ids)
        width = self._limits.size
        if array.ndim != 2 or array.shape[1] != width:
            raise ValueError(f"ids must be [batch, {width}], not {array.shape}")
        if array.size and (array.min() < 0 or (array.max(axis=0) >= self._limits).any()):
            raise IndexError(f"an id lies outside its table; the tables have rows {self.rows}")
        places = array + self._begins
        if self._starts is None:
            found: Tensor = take_rows(self.weight, places)
            return found
        batch = np.arange(len(array), dtype=np.int64)[:, None] * width
        bags = (batch + self._starts).reshape(-1)
        pooled = embedding_bag(Tensor(places.reshape(-1)), self.weight, Tensor(bags), mode="sum")
        shaped: Tensor = pooled.reshape(len(array), len(self.rows), -1)
        return shaped


@final
class RemotePooledEmbedding(Module):
    """Sums the rows of a feature's ids; takes and gives what LocalEmbedding does.

    Args:
        tables: One for each feature, of equal dims.
        fields: Which columns of the ids belong to which feature.
        prefetch_depth: How many batches `prefetch` may fetch ahead.
    """

    def __init__(self, tables: Sequence[Table], fields: Fields, prefetch_depth: int) -> None:
        super().__init__()
        self._columns = fields.columns
        self.bag = RemoteEmbeddingBag(tables, mode="sum", prefetch_depth=prefetch_depth)

    def forward(self, ids: Any) -> Tensor:
        """Look rows up: int64 [batch, ids of a sample] gives [batch, features, dim]."""
        pooled = self.bag(self._parts(ids))
        features = len(self._columns) - 1
        dim = pooled.shape[1] // features
        shaped: Tensor = pooled.reshape(pooled.shape[0], features, dim)
        return shaped

    def prefetch(self, ids: Any) -> bool:
        """Prefetch the rows of the next batch, as RemoteEmbedding's `prefetch` does."""
        return self.bag.prefetch(self._parts(ids))

    def discard_prefetched(self) -> None:
        """Discard prefetched rows that were not used."""
        self.bag.discard_prefetched()

    def _parts(self, ids: Any) -> Any:
        array = np.asarray(ids)
        ends = zip(self._columns[:-1], self._columns[1:], strict=True)
        parts = [array[:, begin:end] for begin, end in ends]
        return parts if len(parts) > 1 else parts[0]


def remote_embedding(
    tables: Sequence[Table], fields: Fields, prefetch_depth: int = 0
) -> RemoteEmbedding | RemotePooledEmbedding:
    """Return the layer that fits the samples: [batch, ids] gives [batch, features, dim]."""
    if fields.pooled:
        return RemotePooledEmbedding(tables, fields, prefetch_depth)
    return RemoteEmbedding(tables, prefetch_depth=prefetch_depth)
