"""Pooling and flattening layers."""

from __future__ import annotations

from typing import Any, final

from gradmesh.engine.autograd import ops
from gradmesh.engine.nn.module import Module


@final
class MaxPool2d(Module):
    """Take the largest element of each window.

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
    """Take the mean of each window.

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
    """Average over a grid of a fixed size.

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
    """Merge axes into one.

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
