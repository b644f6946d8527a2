"""Embedding tables in this process; the SDK has layers for remote ones."""

from __future__ import annotations

from typing import Any, final

from gradmesh.engine.autograd import Tensor, empty, ops
from gradmesh.engine.autograd.ops.embedding import check_mode
from gradmesh.engine.backend import Generator, ShapeError
from gradmesh.engine.backend.dtype import float32
from gradmesh.engine.nn import init
from gradmesh.engine.nn.module import Module, Parameter


def _table(
    rows: int,
    dim: int,
    padding_idx: int | None,
    given: Tensor | None,
    device: Any,
    dtype: Any,
    generator: Generator | None,
) -> Parameter:
    if given is not None:
        if given.shape != (rows, dim):
            raise ShapeError(f"the given table is {given.shape}, not {(rows, dim)}")
        return Parameter(given)
    table = Parameter(empty(rows, dim, dtype=dtype, device=device))
    init.normal_(table, generator=generator)
    if padding_idx is not None:
        table.data[padding_idx] = 0
    return table


@final
class Embedding(Module):
    """Look up rows by id.

    Args:
        num_embeddings: Rows of the table.
        embedding_dim: Columns of the table.
        padding_idx: A row that starts at 0 and gets no gradient.
        sparse: Give the table a RowGrad instead of a dense gradient.
        device: Where the table lives.
        dtype: Of the table.
        generator: Where initial values come from.
    """

    weight: Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        sparse: bool = False,
        device: Any = None,
        dtype: Any = float32,
        generator: Generator | None = None,
        _weight: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.sparse = padding_idx, sparse
        self.weight = _table(
            num_embeddings, embedding_dim, padding_idx, _weight, device, dtype, generator
        )

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        sparse: bool = False,
    ) -> Embedding:
        """Make a layer around an existing table."""
        rows, dim = embeddings.shape
        layer = cls(rows, dim, padding_idx, sparse, _weight=embeddings)
        layer.weight.requires_grad = not freeze
        return layer

    def forward(self, input: Any) -> Any:
        """Return the rows, [..., embedding_dim]."""
        return ops.embedding(input, self.weight, self.padding_idx, self.sparse)

    def extra_repr(self) -> str:
        """Show sizes."""
        return f"{self.num_embeddings}, {self.embedding_dim}, sparse={self.sparse}"


@final
class EmbeddingBag(Module):
    """Look up rows and pool them by bag.

    Args:
        num_embeddings: Rows of the table.
        embedding_dim: Columns of the table.
        mode: `"sum"`, `"mean"` or `"max"`.
        sparse: Give the table a RowGrad instead of a dense gradient.
        include_last_offset: Whether offsets end with the number of ids.
        padding_idx: Ids of this row are left out.
        device: Where the table lives.
        dtype: Of the table.
        generator: Where initial values come from.
    """

    weight: Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = float32,
        generator: Generator | None = None,
        _weight: Tensor | None = None,
    ) -> None:
        super().__init__()
        check_mode(mode)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.mode, self.sparse = mode, sparse
        self.include_last_offset, self.padding_idx = include_last_offset, padding_idx
        self.weight = _table(
            num_embeddings, embedding_dim, padding_idx, _weight, device, dtype, generator
        )

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> EmbeddingBag:
        """Make a layer around an existing table."""
        rows, dim = embeddings.shape
        layer = cls(rows, dim, mode, sparse, include_last_offset, padding_idx, _weight=embeddings)
        layer.weight.requires_grad = not freeze
        return layer

    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        """Return the pooled rows, [bags, embedding_dim]."""
        return ops.embedding_bag(
            input,
            self.weight,
            offsets,
            mode=self.mode,
            sparse=self.sparse,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )

    def extra_repr(self) -> str:
        """Show sizes."""
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}"
