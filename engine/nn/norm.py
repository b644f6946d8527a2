"""Normalisation layers."""

from __future__ import annotations

from typing import Any, final

from gradmesh.engine.autograd import ones, ops, tensor, zeros
from gradmesh.engine.backend import ShapeError
from gradmesh.engine.backend.dtype import float32
from gradmesh.engine.nn.module import Module, Parameter


class BatchNorm(Module):
    """Base of batch normalisation layers; subclasses define the shapes of inputs.

    Args:
        num_features: Channels.
        eps: Added to the variance.
        momentum: Share of a new batch in the running statistics; None for their plain mean.
        affine: Whether to scale and shift by parameters.
        track_running_stats: Whether to keep running statistics for evaluation.
        device: Where parameters and buffers live.
        dtype: Of parameters and buffers.
    """

    axes: tuple[int, ...]
    weight: Parameter | None
    bias: Parameter | None
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = float32,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        position = {"device": device, "dtype": dtype}
        for name, make in (("weight", ones), ("bias", zeros)):
            self.register_parameter(
                name, Parameter(make(num_features, **position)) if affine else None
            )
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, **position) if tracked else None)
        self.register_buffer("running_var", ones(num_features, **position) if tracked else None)
        self.register_buffer("num_batches_tracked", tensor(0) if tracked else None)

    def forward(self, x: Any) -> Any:
        """Return the normalised input."""
        if x.ndim not in self.axes or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}({self.num_features}) cannot take {tuple(x.shape)}"
            )
        return ops.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.count_batch() if self.training else self.momentum,
            self.eps,
        )

    def count_batch(self) -> float:
        """Count a batch of training; return its share in the running statistics, if there are."""
        if self.num_batches_tracked is None:
            return 0.0
        self.num_batches_tracked.data += 1
        return 1 / int(self.num_batches_tracked.data) if self.momentum is None else self.momentum

    def extra_repr(self) -> str:
        """Show sizes."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


@final
class BatchNorm1d(BatchNorm):
    """Apply batch normalisation to [n, channels] or [n, channels, length]."""

    axes = (2, 3)


@final
class BatchNorm2d(BatchNorm):
    """Apply batch normalisation to images [n, channels, height, width]."""

    axes = (4,)


@final
class GroupNorm(Module):
    """Apply group normalisation to [n, channels, ...].

    Args:
        num_groups: Groups, each of as many channels.
        num_channels: Channels.
        eps: Added to the variance.
        affine: Whether to scale and shift each channel by parameters.
        device: Where the parameters live.
        dtype: Of the parameters.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = float32,
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ShapeError(f"{num_channels} channels cannot be in {num_groups} groups")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        position = {"device": device, "dtype": dtype}
        for name, make in (("weight", ones), ("bias", zeros)):
            made = Parameter(make(num_channels, **position)) if affine else None
            self.register_parameter(name, made)

    def forward(self, x: Any) -> Any:
        """Return the normalised input."""
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(
                f"GroupNorm({self.num_groups}, {self.num_channels}) cannot take {tuple(x.shape)}"
            )
        return ops.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Show sizes."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


@final
class LayerNorm(Module):
    """Apply layer normalisation over the last axes.

    Args:
        normalized_shape: Lengths of these axes.
        eps: Added to the variance.
        elementwise_affine: Whether to scale and shift by parameters.
        bias: Whether there is a shift.
        device: Where the parameters live.
        dtype: Of the parameters.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = float32,
    ) -> None:
        super().__init__()
        shape = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
        self.normalized_shape, self.eps = shape, eps
        position = {"device": device, "dtype": dtype}
        scale = Parameter(ones(*shape, **position)) if elementwise_affine else None
        self.register_parameter("weight", scale)
        shift = Parameter(zeros(*shape, **position)) if elementwise_affine and bias else None
        self.register_parameter("bias", shift)

    def forward(self, x: Any) -> Any:
        """Return the normalised input."""
        return ops.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Show sizes."""
        return f"{self.normalized_shape}, eps={self.eps}"
