"""Check a module and the options when it is wrapped, and collect what the reducer needs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Device, as_device
from gradmesh.engine.nn import Module
from gradmesh.trainer.ddp.bucket import SparseBucket
from gradmesh.trainer.ddp.bucket_assignment import GradientSpec
from gradmesh.trainer.ddp.mixed_precision import MixedPrecision
from gradmesh.trainer.ddp.options import ReducerOptions
from gradmesh.trainer.ddp.reducer import Reducer
from gradmesh.trainer.ddp.tensor_tree import map_tensors


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """The device of a module, to which inputs are moved."""

    target: Device | None
    """The device that inputs are moved to; None does not move them."""
    is_multi_device: bool
    """Whether parameters lie on several devices."""

    @classmethod
    def of(cls, module: Module, device_ids: Any, output_device: Any) -> Placement:
        """Check the wrapper's device options against the module.

        Raises:
            ValueError: If they do not fit it.
        """
        devices = sorted({str(parameter.device) for parameter in module.parameters()})
        kinds = {as_device(device).kind for device in devices}
        if len(kinds) > 1:
            raise ValueError(f"parameters on {', '.join(devices)}; use one kind of device")
        ids = list(device_ids or ())
        if len(ids) > 1:
            raise ValueError(f"device_ids is {ids}; a process drives one device, give one or none")
        if (ids or output_device is not None) and (kinds == {"cpu"} or len(devices) > 1):
            raise ValueError(
                f"device_ids {ids} and output_device {output_device} are for a module on one GPU,"
                f" this one is on {', '.join(devices)}; leave them out"
            )
        if not ids:
            return cls(None, len(devices) > 1)
        given = ids[0]
        target = as_device(f"cuda:{given}" if isinstance(given, int) else given)
        if str(target) != devices[0]:
            raise ValueError(f"device_ids is {ids}, but the module is on {devices[0]}")
        return cls(target, False)

    def move(self, values: Any) -> Any:
        """Return values with their tensors on the module's device."""
        if self.target is None:
            return values
        target = self.target
        return map_tensors(values, lambda tensor: tensor.to(device=target))


def buffer_modes(broadcast: bool | None, forward_sync: bool | None) -> tuple[bool, bool]:
    """Return whether buffers are copied before forwards, and whether when wrapping.

    Args:
        broadcast: PyTorch's old option, which sets both; deprecated with a warning.
        forward_sync: The new option, which sets the first; it wins if both are given.
    """
    if broadcast is None:
        return forward_sync is not False, True
    remedy = "use forward_sync_buffers, which copies buffers when wrapping in any case"
    if forward_sync is not None:
        remedy = "forward_sync_buffers was given, too, and counts"
    warnings.warn(f"broadcast_buffers is deprecated; {remedy}", FutureWarning, stacklevel=3)
    return (broadcast, broadcast) if forward_sync is None else (forward_sync, True)


def check_delayed(
    named: Sequence[tuple[str, Tensor]] | None, trigger: Tensor | None
) -> list[tuple[str, Tensor]]:
    """Return the parameters that are reduced separately.

    Raises:
        ValueError: If only one of the two options was given.
    """
    if (named is None) != (trigger is None):
        raise ValueError(
            "delay_all_reduce_named_params and param_to_hook_all_reduce belong together"
        )
    return list(named or ())


def check_some(module: Module, leaves: Sequence[Tensor], delayed: Sequence[Any]) -> None:
    """Raise ValueError if there is nothing to average.

    Call it after ranks have compared their parameters: otherwise only some would raise.
    """
    if not leaves and not delayed:
        raise ValueError(
            f"{type(module).__name__} has no parameter that requires a gradient;"
            " nothing is to be averaged"
        )


def reduced_parameters(
    module: Module,
    left_out: Iterable[str],
    precision: MixedPrecision | None,
    as_view: bool,
) -> tuple[list[Tensor], list[GradientSpec]]:
    """Return the parameters to average, each once, with the specs of their gradients.

    A bucket has the dtype of the all-reduce, so that filling it casts gradients. If `.grad` is a
    view of the bucket, the bucket has the parameter's dtype, and a cast copy is reduced.
    """
    skipped = set(left_out)
    sparse = _sparse(module)
    leaves: list[Tensor] = []
    specs = []
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad or name in skipped:
            continue
        full = parameter.dtype
        short = full if precision is None else precision.reduce_dtype_of(full)
        leaves.append(parameter)
        specs.append(
            GradientSpec(
                name,
                parameter.shape,
                full if as_view else short,
                str(parameter.device),
                id(parameter) in sparse,
                short if as_view else None,
            )
        )
    return leaves, specs


def _sparse(module: Module) -> set[int]:
    """Return the ids of the parameters that get sparse gradients."""
    return {
        id(getattr(part, "weight", None))
        for part in module.modules()
        if getattr(part, "sparse", False) is True
    }


def describe(
    module: Module,
    ignored: Iterable[str],
    options: ReducerOptions,
    precision: MixedPrecision | None,
    buffer_modes: tuple[bool, bool],
) -> list[tuple[str, str]]:
    """Return the entries that must be equal on all ranks."""
    left_out, sparse = set(ignored), _sparse(module)
    lines = [
        (
            f"parameter {name}",
            f"{p.dtype} {list(p.shape)} requires_grad={p.requires_grad}"
            + (" sparse" if id(p) in sparse else ""),
        )
        for name, p in module.named_parameters()
        if name not in left_out
    ]
    lines += [
        (f"buffer {name}", f"{b.dtype} {list(b.shape)}")
        for name, b in module.named_buffers()
        if name not in left_out
    ]
    lines += options.describe()
    if precision is not None:
        # The sizes of buckets depend on it then.
        lines.append(("option gradient_as_bucket_view", f"{options.gradient_as_bucket_view}"))
    in_forward, when_wrapping = buffer_modes
    return [
        *lines,
        ("option mixed_precision", f"{precision}"),
        ("option forward_sync_buffers", f"{in_forward}"),
        ("option broadcast_buffers", f"{when_wrapping} when wrapping"),
    ]


def describe_delayed(
    module: Module, delayed: Sequence[tuple[str, Tensor]], trigger: Tensor | None
) -> list[tuple[str, str]]:
    """Return the entries about separately reduced parameters that must be equal on all ranks."""
    triggers = [name for name, parameter in module.named_parameters() if parameter is trigger]
    return [
        ("option delay_all_reduce_named_params", ", ".join(name for name, _ in delayed)),
        ("option param_to_hook_all_reduce", ", ".join(triggers)),
    ]


def check_sparse_ids(reducer: Reducer, ids: Mapping[str, Any]) -> None:
    """Give sparse buckets the ids of their next pass.

    Raises:
        KeyError: If a sparse parameter has no ids; nothing changes then.
    """
    sparse = [bucket for bucket in reducer.layout.buckets if isinstance(bucket, SparseBucket)]
    missing = [b.specs[0].name for b in sparse if b.specs[0].name not in ids]
    if missing:
        raise KeyError(f"no ids for the sparse parameters {', '.join(missing)}")
    for bucket in sparse:
        bucket.ids = np.unique(np.asarray(ids[bucket.specs[0].name], np.int64))


_ATTRIBUTE = "_ddp_params_and_buffers_to_ignore"


def set_params_and_buffers_to_ignore(module: Module, names: Iterable[str]) -> None:
    """Exclude parameters and buffers of a module from DistributedDataParallel.

    Call it before wrapping. They are not compared, copied or averaged; their shapes may differ
    between ranks.

    Args:
        module: The module that will be wrapped.
        names: Dotted names, as `named_parameters` and `named_buffers` return them.

    Raises:
        KeyError: If the module has no such parameter or buffer.
    """
    ignored = set(names)
    known = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    if ignored - known:
        raise KeyError(f"{type(module).__name__} has no {', '.join(sorted(ignored - known))}")
    module.__dict__[_ATTRIBUTE] = frozenset(ignored)


def ignored_names(module: Module) -> frozenset[str]:
    """Return the names that were set on a module."""
    return frozenset(module.__dict__.get(_ATTRIBUTE, ()))
