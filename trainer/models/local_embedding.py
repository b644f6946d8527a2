"""Embedding rows in this process: what a model uses when it trains alone."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import Tensor, empty
from gradmesh.engine.autograd.ops import take_rows
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import Module, Parameter, init


@final
class LocalEmbedding(Module):
    """One table for each feature, all in one matrix, with dense gradients.

    Args:
        rows: How many rows each feature's table has.
        dim: Length of a row.
        bound: Initial values are uniform in ±bound; 1/sqrt(dim) if None.
        generator: Where initial values come from; the default stream if None.
    """

    weight: Parameter

    def __init__(
        self,
        rows: Sequence[int],
        dim: int,
        *,
        bound: float | None = None,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.rows = tuple(rows)
        self.offsets = np.cumsum([0, *self.rows], dtype=np.int64)
        self.weight = Parameter(empty(sum(self.rows), dim))
        spread = dim**-0.5 if bound is None else bound
        init.uniform_(self.weight, -spread, spread, generator)

    def table(self, feature: int) -> Any:
        """Return the rows of one feature's table, a view [rows, dim]."""
        return self.weight.data[self.offsets[feature] : self.offsets[feature + 1]]

    def forward(self, ids: Any) -> Tensor:
        """Look rows up: int64 [batch, features] gives [batch, features, dim].

        Raises:
            IndexError: An id is no row of its feature's table.
        """
        array = np.asarray(ids.data if isinstance(ids, Tensor) else ids)
        if array.ndim != 2 or array.shape[1] != len(self.rows):
            raise ValueError(f"ids must be [batch, {len(self.rows)}], not {array.shape}")
        if array.size and (array.min() < 0 or (array.max(axis=0) >= self.rows).any()):
            raise IndexError(f"an id lies outside its table; the tables have rows {self.rows}")
        found: Tensor = take_rows(self.weight, array + self.offsets[:-1])
        return found
