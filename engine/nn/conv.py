"""Convolution, pooling and flattening layers."""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

from gradmesh.engine.autograd import empty, ops
from gradmesh.engine.autograd.ops.window import check_padding, pair, single
from gradmesh.engine.backend import Generator, ShapeError
from gradmesh.engine.backend.dtype import float32
from gradmesh.engine.nn import init
from gradmesh.engine.nn.module import Module, Parameter


class Conv(Module):
    """Base of convolution layers; subclasses define the number of axes.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the result.
        kernel_size: Size of the kernel, one number or one an axis.
        stride: Step between two patches.
        padding: Zeros around the input, or "same" or "valid".
        dilation: Step between two elements of a patch.
        groups: Independent groups of channels.
        bias: Whether to add a number per channel.
        device: Where the parameters live.
        dtype: Of the parameters.
        generator: Where initial values come from.
    """

    axes: ClassVar[int]

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        device: Any = None,
        dtype: Any = float32,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ShapeError(f"{in_channels} and {out_channels} channels in {groups} groups")
        self.stride, self.dilation = self._per_axis(stride), self._per_axis(dilation)
        self.groups = groups
        check_padding(padding, self.stride)
        self.padding = padding if isinstance(padding, str) else self._per_axis(padding)
        shape = (out_channels, in_channels // groups, *self._per_axis(kernel_size))
        self.weight = Parameter(empty(*shape, dtype=dtype, device=device))
        made = Parameter(empty(out_channels, dtype=dtype, device=device)) if bias else None
        self.register_parameter("bias", made)
        self.reset_parameters(generator)

    def reset_parameters(self, generator: Generator | None = None) -> None:
        """Draw new initial values."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5), generator=generator)
        if self.bias is not None:
            bound = 1 / math.sqrt(init.fans(self.weight)[0])
            init.uniform_(self.bias, -bound, bound, generator)

    def _per_axis(self, value: Any) -> tuple[int, ...]:
        return (single(value),) if self.axes == 1 else pair(value)

    def extra_repr(self) -> str:
        """Show sizes."""
        return f"{self.weight.shape}, stride={self.stride}, padding={self.padding}"


@final
class Conv1d(Conv):
    """Apply a convolution to sequences [batch, channels, length], or [channels, length]."""

    axes = 1

    def forward(self, x: Any) -> Any:
        """Return [batch, out_channels, length]."""
        return ops.conv1d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


@final
class Conv2d(Conv):
    """Apply a convolution to images [batch, channels, height, width]."""

    axes = 2

    def forward(self, x: Any) -> Any:
        """Return [batch, out_channels, height, width]."""
        return ops.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


@final
class MaxPool2d(Module):
    """Compute the maximum of each window.

    Args:
        kernel_size: Size of the window.
        stride: Step between windows, the window's size unless given.
        padding: Border around the image.
    """

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x: Any) -> Any:
        """Return [batch, channels, height, width] of the windows."""
        return ops.max_pool2d(x, self.kernel_size, self.stride, self.padding)


@final
class AvgPool2d(Module):
    """Compute the mean of each window.

    Args:
        kernel_size: Size of the window.
        stride: Step between windows, the window's size unless given.
        padding: Zeros around the image, which count.
    """

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x: Any) -> Any:
        """Return [batch, channels, height, width] of the windows."""
        return ops.avg_pool2d(x, self.kernel_size, self.stride, self.padding)


@final
class AdaptiveAvgPool2d(Module):
    """Compute means over a grid of a fixed output size.

    Args:
        output_size: Size of the grid.
    """

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Any) -> Any:
        """Return [batch, channels, *output_size]."""
        return ops.adaptive_avg_pool2d(x, self.output_size)


@final
class Flatten(Module):
    """Merge a range of axes into one.

    Args:
        start_dim: First axis to merge.
        end_dim: Last axis to merge.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Any) -> Any:
        """Return x with the axes merged."""
        return x.flatten(self.start_dim, self.end_dim)
