"""Multi-head attention."""

from __future__ import annotations

import math
from typing import Any, final

from gradmesh.engine.autograd import Tensor, empty, ops
from gradmesh.engine.backend import DtypeError, Generator, ShapeError, array_module
from gradmesh.engine.backend.dtype import float32, is_float
from gradmesh.engine.nn import init
from gradmesh.engine.nn.linear import Linear
from gradmesh.engine.nn.module import Module, Parameter


@final
class MultiheadAttention(Module):
    """Apply multi-head attention of each position of a query to all positions of a key.

    Args:
        embed_dim: Length of the query's and of the result's last axis.
        num_heads: Heads, which share embed_dim between them.
        dropout: Probability with which a weight is 0 in training.
        bias: Whether the projections add a bias.
        add_bias_kv: Not offered.
        add_zero_attn: Not offered.
        kdim: Length of the key's last axis; embed_dim if None.
        vdim: Length of the value's last axis; embed_dim if None.
        batch_first: Whether inputs are [batch, length, dim] instead of [length, batch, dim].
        device: Where the parameters live.
        dtype: Of the parameters.
        generator: Where initial values and dropout come from.

    Raises:
        ValueError: If a size or dropout is out of its range, or an option is not offered.
    """

    in_proj_weight: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    in_proj_bias: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = float32,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} cannot be shared by {num_heads} heads")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout is {dropout}; a probability lies in [0, 1]")
        if add_bias_kv or add_zero_attn:
            raise ValueError("MultiheadAttention offers neither add_bias_kv nor add_zero_attn")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout, self.batch_first, self.generator = dropout, batch_first, generator
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        position = {"device": device, "dtype": dtype}
        shapes: dict[str, tuple[int, int]] = {"in_proj_weight": (3 * embed_dim, embed_dim)}
        if (self.kdim, self.vdim) != (embed_dim, embed_dim):
            dims = (embed_dim, self.kdim, self.vdim)
            shapes = {
                f"{n}_proj_weight": (embed_dim, dim) for n, dim in zip("qkv", dims, strict=True)
            }
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            made = Parameter(empty(*shapes[name], **position)) if name in shapes else None
            self.register_parameter(name, made)
        self.register_parameter(
            "in_proj_bias", Parameter(empty(3 * embed_dim, **position)) if bias else None
        )
        self.out_proj = Linear(embed_dim, embed_dim, bias, generator=generator, **position)
        self.reset_parameters(generator)

    def reset_parameters(self, generator: Generator | None = None) -> None:
        """Draw new initial values of the projections of query, key and value."""
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            weight = getattr(self, name)
            if weight is not None:
                init.xavier_uniform_(weight, generator=generator)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Any, Any]:
        """Return the result and the weights of attention, None if they are not needed.

        Args:
            query: [length, batch, embed_dim], batch first if so made, or without the batch.
            key: As query, of its own length, with kdim.
            value: As key, with vdim.
            key_padding_mask: [batch, key length]; true for positions to leave out, or numbers that
                are added to the scores.
            need_weights: Whether to return the weights.
            attn_mask: [query length, key length] or [batch * num_heads, query length, key length];
                pairs to leave out are true, or numbers that are added to the scores.
            average_attn_weights: Whether the weights returned are the mean over the heads.
            is_causal: Says that attn_mask is causal; attn_mask must be given all the same.

        Where a mask leaves a position of the query nothing, its weights are NaN, and without
        need_weights 0, as in torch.

        Raises:
            ShapeError: If shapes do not fit.
            DtypeError: If a mask is neither bool nor float.
            ValueError: If is_causal comes without attn_mask.
        """
        if is_causal and attn_mask is None:
            raise ValueError("is_causal describes attn_mask; give the mask as well")
        has_batch = self._check(query, key, value)
        first = self.batch_first or not has_batch
        # The same object stays the same, so that it is projected by one product.
        led = {id(x): x for x in (query, key, value)}
        for position, x in led.items():
            x = x if has_batch else ops.unsqueeze(x, 0)
            led[position] = x if first else ops.transpose(x, 0, 1)
        parts = self._project(led[id(query)], led[id(key)], led[id(value)])
        q, k, v = (self._split(part) for part in parts)
        scores = ops.matmul(q * math.sqrt(1 / self.head_dim), ops.transpose(k, 2, 3))
        mask = self._mask(scores, attn_mask, key_padding_mask, has_batch)
        weights = _softmax(scores, mask, math.nan if need_weights else 0.0)
        weights = ops.dropout(weights, self.dropout, self.training, self.generator)
        batch, _, length, _ = q.shape
        mixed = ops.permute(ops.matmul(weights, v), (0, 2, 1, 3))
        out = self.out_proj(ops.reshape(mixed, (batch, length, self.embed_dim)))
        out = out if first else ops.transpose(out, 0, 1)
        shown = None
        if need_weights:
            shown = ops.mean(weights, 1) if average_attn_weights else weights
            shown = shown if has_batch else ops.squeeze(shown, 0)
        return (out if has_batch else ops.squeeze(out, 0)), shown

    def extra_repr(self) -> str:
        """Show sizes."""
        return f"{self.embed_dim}, {self.num_heads}, batch_first={self.batch_first}"

    def _check(self, query: Any, key: Any, value: Any) -> bool:
        """Return whether there is a batch; raise ShapeError if shapes do not fit."""
        given = [tuple(x.shape) for x in (query, key, value)]
        axes = {len(shape) for shape in given}
        has_batch = axes == {3}
        batch = 0 if self.batch_first else 1
        if (
            axes not in ({2}, {3})
            or [shape[-1] for shape in given] != [self.embed_dim, self.kdim, self.vdim]
            or given[1][:-1] != given[2][:-1]
            or (has_batch and given[0][batch] != given[1][batch])
        ):
            raise ShapeError(
                f"MultiheadAttention({self.embed_dim}, {self.num_heads}, kdim={self.kdim}, "
                f"vdim={self.vdim}, batch_first={self.batch_first}) cannot take query {given[0]}, "
                f"key {given[1]} and value {given[2]}"
            )
        return has_batch

    def _project(self, query: Any, key: Any, value: Any) -> list[Any]:
        """Return query, key and value in embed_dim, by one product if they are the same."""
        size, weight, bias = self.embed_dim, self.in_proj_weight, self.in_proj_bias
        if weight is not None and query is key is value:
            return list(ops.chunk(ops.linear(query, weight, bias), 3, -1))
        own = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        parts = []
        for position, (x, matrix) in enumerate(zip((query, key, value), own, strict=True)):
            rows = slice(position * size, (position + 1) * size)
            shift = None if bias is None else bias[rows]
            parts.append(ops.linear(x, matrix if weight is None else weight[rows], shift))
        return parts

    def _split(self, x: Any) -> Any:
        """Return [batch, heads, length, head_dim]."""
        shape = (*x.shape[:2], self.num_heads, self.head_dim)
        return ops.permute(ops.reshape(x, shape), (0, 2, 1, 3))

    def _mask(self, scores: Any, attn_mask: Any, padding: Any, has_batch: bool) -> Any:
        """Return what is added to scores [batch, heads, length, keys], or None."""
        batch, heads, length, keys = scores.shape
        total = None
        if attn_mask is not None:
            plain, full = (length, keys), (batch * heads, length, keys)
            if tuple(attn_mask.shape) not in (plain, full):
                raise ShapeError(
                    f"attn_mask {tuple(attn_mask.shape)} is neither {plain} nor {full}"
                )
            total = _added("attn_mask", attn_mask, scores.dtype)
            if total.ndim == 3:
                total = ops.reshape(total, (batch, heads, length, keys))
        if padding is not None:
            wanted = (batch, keys) if has_batch else (keys,)
            if tuple(padding.shape) != wanted:
                raise ShapeError(f"key_padding_mask is {tuple(padding.shape)}, not {wanted}")
            added = _added("key_padding_mask", padding, scores.dtype)
            added = ops.reshape(added, (batch, 1, 1, keys))
            total = added if total is None else total + added
        return total


def _added(name: str, mask: Any, dtype: Any) -> Any:
    """Return a mask as numbers to add: minus infinity where a boolean mask excludes a position."""
    if mask.dtype == bool:
        xp = array_module(mask.data)
        return Tensor(xp.where(mask.data, -math.inf, 0.0).astype(dtype))
    if not is_float(mask.dtype):
        raise DtypeError(f"{name} is {mask.dtype}; use bool or floats")
    return mask.to(dtype=dtype)


def _softmax(scores: Any, mask: Any, of_nothing: float) -> Any:
    """Return weights that add up to 1; a row that is masked as a whole has one value."""
    if not scores.shape[-1]:
        return scores
    if mask is None:
        return ops.softmax(scores, -1)
    nothing = (mask.data == -math.inf).all(axis=-1, keepdims=True)
    if not bool(nothing.any()):
        return ops.softmax(scores + mask, -1)
    where = ops.broadcast_to(Tensor(nothing), scores.shape)
    return ops.masked_fill(
        ops.softmax(ops.masked_fill(scores + mask, where, 0.0), -1), where, of_nothing
    )
