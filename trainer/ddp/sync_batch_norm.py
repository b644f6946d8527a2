"""SyncBatchNorm: statistics over the batches of all ranks."""

from __future__ import annotations

from typing import Any, final

from gradmesh.engine.autograd import Function
from gradmesh.engine.autograd.ops.norm import parameter_dtype
from gradmesh.engine.backend import Array, ShapeError, array_module, to_numpy
from gradmesh.engine.nn import Module
from gradmesh.engine.nn.norm import BatchNorm
from gradmesh.trainer.ddp.agreement import to_group_memory
from gradmesh.trainer.process_group import ProcessGroup, default_group
from gradmesh.trainer.process_group.reduction import accumulation_dtype


@final
class SyncBatchNorm(BatchNorm):
    """Apply batch normalisation to [n, channels, ...], with statistics over all ranks.

    In training forward and backward are collective. In evaluation it is an ordinary layer. Sums run
    in float64 and in rank order, so all ranks have the same statistics.

    Args:
        num_features: Channels.
        process_group: The ranks; None for the default group at the time of the forward.
        options: Those of BatchNorm2d.
    """

    axes = (2, 3, 4, 5)

    def __init__(
        self, num_features: int, process_group: ProcessGroup | None = None, **options: Any
    ) -> None:
        super().__init__(num_features, **options)
        self.process_group = process_group

    def forward(self, x: Any) -> Any:
        """Return the normalised input; collective in training."""
        if not self.training and self.running_mean is not None:
            return super().forward(x)
        if x.ndim not in self.axes or x.shape[1] != self.num_features:
            raise ShapeError(f"SyncBatchNorm({self.num_features}) cannot take {tuple(x.shape)}")
        kind = parameter_dtype("SyncBatchNorm", x, self.weight, self.bias)
        group = default_group() if self.process_group is None else self.process_group
        mean, var, count = _statistics(x.data, group)
        if self.training and self.running_mean is not None:
            share = self.count_batch()
            if count:
                _update_running(self.running_mean, mean, share)
                _update_running(self.running_var, var * (count / (count - 1)), share)
        invstd = 1 / array_module(var).sqrt(var + self.eps)
        return _SyncBatchNorm.apply(x, self.weight, self.bias, mean, invstd, count, group, kind)

    @classmethod
    def convert(cls, module: Module, process_group: ProcessGroup | None = None) -> Module:
        """Return the module with every batch normalisation replaced; values are kept."""
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
    __slots__ = ("count", "group", "kind")

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
        kind: Any,
    ) -> Array:
        ctx.count, ctx.group, ctx.kind = max(count, 1), group, kind
        ctx.save_for_backward(x, weight, mean, invstd)
        scale = invstd if weight is None else weight * invstd
        shift = -mean * scale if bias is None else bias - mean * scale
        # In float32 for half types: the two terms may be large, and their sum small.
        given = _wide(x)
        made = given * _channels(scale, given) + _channels(shift, given)
        return made.astype(x.dtype, copy=False)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        given, weight, mean, invstd = ctx.saved_tensors
        x, grad = _wide(given), _wide(grad)
        axes = (0, *range(2, x.ndim))
        own = grad.sum(axis=axes, dtype="float64")
        products = (grad * x).sum(axis=axes, dtype="float64")
        weight_grad = (products - mean * own) * invstd
        sums, weight_grad_sums = _summed(ctx.group, own, weight_grad)
        scale = invstd if weight is None else weight * invstd
        of_x = -scale * invstd * weight_grad_sums / ctx.count
        constant = -scale * sums / ctx.count - of_x * mean
        grad_x = grad * _channels(scale, x) + x * _channels(of_x, x) + _channels(constant, x)
        # Gradients of the parameters are local: the wrapper averages them.
        return (
            grad_x.astype(given.dtype, copy=False),
            weight_grad.astype(ctx.kind) if ctx.needs_input_grad[1] else None,
            own.astype(ctx.kind) if ctx.needs_input_grad[2] else None,
            *(None,) * 5,
        )


def _wide(x: Array) -> Array:
    return x.astype(accumulation_dtype(x.dtype), copy=False)


def _channels(channels: Array, like: Array) -> Array:
    return channels.reshape(1, -1, *([1] * (like.ndim - 2))).astype(like.dtype)


def _statistics(x: Array, group: ProcessGroup) -> tuple[Array, Array, float]:
    """Return mean, biased variance and number of values per channel over all ranks.

    If batches are empty on all ranks, mean is 0 and variance 1, as in BatchNorm.
    """
    xp = array_module(x)
    axes = (0, *range(2, x.ndim))
    sums = x.sum(axis=axes, dtype="float64")
    squares = (x.astype("float64") ** 2).sum(axis=axes)
    own = xp.full(1, x.size // x.shape[1], dtype="float64")
    all_sums, all_squares, total = _summed(group, sums, squares, own)
    count = float(total[0])
    if count == 1:
        raise ShapeError("SyncBatchNorm needs more than one value per channel over all ranks")
    if not count:
        return all_sums, xp.ones_like(all_sums), count
    mean = all_sums / count
    return mean, xp.maximum(all_squares / count - mean * mean, 0), count


def _summed(group: ProcessGroup, *parts: Array) -> list[Array]:
    """Return each array summed over the ranks, in one message."""
    xp = array_module(parts[0])
    shared = to_group_memory(group, to_numpy(xp.concatenate(parts)))
    group.all_reduce(shared).wait()
    whole = xp.asarray(to_numpy(shared)).copy()
    made, start = [], 0
    for part in parts:
        made.append(whole[start : start + part.size])
        start += part.size
    return made


def _update_running(running: Any, value: Array, momentum: float) -> None:
    running.data[...] = running.data * (1 - momentum) + value * momentum
    running.version[0] += 1
