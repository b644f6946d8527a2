"""SyncBatchNorm: statistics over the batches of all ranks."""

from __future__ import annotations

from typing import Any, final

from gradmesh.engine.autograd import Function
from gradmesh.engine.backend import Array, ShapeError, array_module, to_numpy
from gradmesh.engine.nn import Module
from gradmesh.engine.nn.norm import BatchNorm
from gradmesh.trainer.ddp.exchange import on_group
from gradmesh.trainer.process_group import ProcessGroup


@final
class SyncBatchNorm(BatchNorm):
    """Normalise each channel of [n, channels, ...] over the batches of all ranks.

    In training forward and backward are collective. In evaluation it is an ordinary layer. Sums run
    in float64 and in rank order, so all ranks have the same statistics.

    Args:
        num_features: Channels.
        process_group: The ranks.
        options: As of BatchNorm2d.
    """

    axes = (2, 3, 4, 5)

    def __init__(self, num_features: int, process_group: ProcessGroup, **options: Any) -> None:
        super().__init__(num_features, **options)
        self.process_group = process_group

    def forward(self, x: Any) -> Any:
        """Return the normalised input; collective in training."""
        if not self.training and self.running_mean is not None:
            return super().forward(x)
        if x.ndim not in self.axes or x.shape[1] != self.num_features:
            raise ShapeError(f"SyncBatchNorm({self.num_features}) cannot take {tuple(x.shape)}")
        sums, squares, count = _statistics(x.data, self.process_group)
        mean = sums / count
        var = array_module(mean).maximum(squares / count - mean * mean, 0)
        if self.training and self.running_mean is not None:
            share = self.count_batch()
            unbiased = var * (count / max(count - 1, 1))
            _follow(self.running_mean, mean, share)
            _follow(self.running_var, unbiased, share)
        invstd = 1 / array_module(var).sqrt(var + self.eps)
        return _SyncBatchNorm.apply(
            x, self.weight, self.bias, mean, invstd, count, self.process_group
        )

    @classmethod
    def convert(cls, module: Module, process_group: ProcessGroup) -> Module:
        """Return the module with every batch normalisation replaced, values taken over."""
        if isinstance(module, BatchNorm) and not isinstance(module, cls):
            made = cls(module.num_features, process_group, eps=module.eps, momentum=module.momentum)
            made.weight, made.bias = module.weight, module.bias
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                made.register_buffer(name, getattr(module, name))
            made.train(module.training)
            return made
        for name, child in list(module.named_children()):
            changed = cls.convert(child, process_group)
            if changed is not child:
                module.add_module(name, changed)
        return module


class _SyncBatchNorm(Function):
    __slots__ = ("count", "group")

    @staticmethod
    def forward(
        ctx: Any,
        x: Array,
        weight: Any,
        bias: Any,
        mean: Array,
        invstd: Array,
        count: float,
        group: ProcessGroup,
    ) -> Array:
        ctx.count, ctx.group = count, group
        ctx.save_for_backward(x, weight, mean, invstd)
        scale = invstd if weight is None else weight * invstd
        shift = -mean * scale if bias is None else bias - mean * scale
        return x * _wide(scale, x) + _wide(shift, x)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, weight, mean, invstd = ctx.saved_tensors
        axes = (0, *range(2, x.ndim))
        own = grad.sum(axis=axes, dtype="float64")
        products = (grad * x).sum(axis=axes, dtype="float64")
        lined = (products - mean * own) * invstd
        sums, lined_sums = _summed(ctx.group, own, lined)
        scale = invstd if weight is None else weight * invstd
        of_x = -scale * invstd * lined_sums / ctx.count
        constant = -scale * sums / ctx.count - of_x * mean
        grad_x = grad * _wide(scale, x) + x * _wide(of_x, x) + _wide(constant, x)
        kind = grad.dtype
        # Of the parameters each rank has its own part: the wrapper averages them.
        return (grad_x, lined.astype(kind), own.astype(kind), None, None, None, None)


def _wide(channels: Array, like: Array) -> Array:
    return channels.reshape(1, -1, *([1] * (like.ndim - 2))).astype(like.dtype)


def _statistics(x: Array, group: ProcessGroup) -> tuple[Array, Array, float]:
    """Return sums and sums of squares over all ranks, and how many values there are."""
    axes = (0, *range(2, x.ndim))
    sums = x.sum(axis=axes, dtype="float64")
    squares = (x.astype("float64") ** 2).sum(axis=axes)
    count = array_module(x).full(1, x.size // x.shape[1], dtype="float64")
    all_sums, all_squares, total = _summed(group, sums, squares, count)
    values = float(total[0])
    if values < 2:
        raise ShapeError("SyncBatchNorm needs more than one value per channel over all ranks")
    return all_sums, all_squares, values


def _summed(group: ProcessGroup, *parts: Array) -> list[Array]:
    """Return each array summed over the ranks, in one message."""
    xp = array_module(parts[0])
    shared = on_group(group, to_numpy(xp.concatenate(parts)))
    group.all_reduce(shared).wait()
    whole = xp.asarray(to_numpy(shared)).copy()
    made, start = [], 0
    for part in parts:
        made.append(whole[start : start + part.size])
        start += part.size
    return made


def _follow(running: Any, value: Array, momentum: float) -> None:
    running.data[...] = running.data * (1 - momentum) + value * momentum
    running.version[0] += 1
