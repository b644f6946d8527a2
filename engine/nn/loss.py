"""Losses as modules."""

from __future__ import annotations

from typing import Any, final

from gradmesh.engine.autograd import ops
from gradmesh.engine.nn.module import Module


@final
class MSELoss(Module):
    """Compute the squared error.

    Args:
        reduction: `"mean"`, `"sum"` or `"none"`.
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss."""
        return ops.mse_loss(x, target, self.reduction)


@final
class L1Loss(Module):
    """Compute the absolute error.

    Args:
        reduction: `"mean"`, `"sum"` or `"none"`.
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss."""
        return ops.l1_loss(x, target, self.reduction)


@final
class SmoothL1Loss(Module):
    """Compute the smooth L1 loss: quadratic for errors below beta, linear beyond.

    Args:
        reduction: `"mean"`, `"sum"` or `"none"`.
        beta: Where the square ends; with 0 it is the absolute error.
    """

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__()
        self.reduction = reduction
        self.beta = beta

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss."""
        return ops.smooth_l1_loss(x, target, self.reduction, self.beta)


@final
class HuberLoss(Module):
    """Compute the Huber loss: quadratic for errors below delta, linear beyond.

    Args:
        reduction: `"mean"`, `"sum"` or `"none"`.
        delta: Where the line begins.
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__()
        self.reduction = reduction
        self.delta = delta

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss."""
        return ops.huber_loss(x, target, self.reduction, self.delta)


@final
class BCEWithLogitsLoss(Module):
    """Compute the binary cross-entropy of sigmoid(x) against targets in [0, 1].

    Args:
        weight: Weight per element, or None.
        reduction: `"mean"`, `"sum"` or `"none"`.
        pos_weight: Weight of the positive side, or None.
    """

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)
        self.reduction = reduction

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss."""
        fields = self.__dict__
        return ops.binary_cross_entropy_with_logits(
            x, target, fields["weight"], self.reduction, fields["pos_weight"]
        )


@final
class NLLLoss(Module):
    """Compute the negative log-likelihood of the target classes.

    Args:
        weight: Weight per class, or None.
        ignore_index: Targets of this value count for nothing.
        reduction: `"mean"`, `"sum"` or `"none"`.
    """

    def __init__(
        self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss."""
        return ops.nll_loss(x, target, self.__dict__["weight"], self.ignore_index, self.reduction)


@final
class CrossEntropyLoss(Module):
    """Compute the cross-entropy of softmax(x) against class indices or class probabilities.

    Args:
        weight: Weight per class, or None.
        ignore_index: Targets of this value count for nothing.
        reduction: `"mean"`, `"sum"` or `"none"`.
        label_smoothing: Share of each target spread evenly over the classes.
    """

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss."""
        return ops.cross_entropy(
            x,
            target,
            self.__dict__["weight"],
            self.ignore_index,
            self.reduction,
            self.label_smoothing,
        )
