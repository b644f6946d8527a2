"""Embedding rows on the servers, for samples with any number of ids a feature."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.nn import Module
from gradmesh.sdk.nn.remote_embedding import RemoteEmbedding
from gradmesh.sdk.nn.remote_embedding_bag import RemoteEmbeddingBag
from gradmesh.sdk.table.table import Table
from gradmesh.trainer.data.fields import Fields


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
        """Ask for the rows of the next batch, as RemoteEmbedding's `prefetch` does."""
        return self.bag.prefetch(self._parts(ids))

    def discard_prefetched(self) -> None:
        """Forget what was fetched ahead and not used."""
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
