"""The two libraries behind one interface."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.parity.fuzz import ddp_on_cpu
from tests.parity.fuzz.ddp_config import Config


class TorchLibrary:
    """PyTorch over gloo.

    Args:
        group: The ranks.
    """

    def __init__(self, group: Any) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
        from torch.nn.parallel import DistributedDataParallel

        self.lib, self.nn, self.group = torch, torch.nn, group
        self.rank = dist.get_rank(group)
        self.hooks = {
            "allreduce": default_hooks.allreduce_hook,
            "fp16": default_hooks.fp16_compress_hook,
            "fp16_wrapper": default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
            "noop": debugging_hooks.noop_hook,
            # Without annotations, which torch compares with the very classes.
            "halving": lambda group, bucket: default_hooks.allreduce_hook(group, bucket).then(
                lambda future: future.value() / 2
            ),
        }
        self._dist, self._ddp = dist, DistributedDataParallel

    def wrap(self, module: Any, config: Config, options: dict[str, Any]) -> Any:
        """Return the wrapped module."""
        if config.mixed is not None:
            module = ddp_on_cpu.short_module(module, config.mixed[0])
        return self._ddp(module, process_group=self.group, **options)

    def hook(self, config: Config) -> Any:
        """Return the hook; the plain one where torch's wrapper fails, which means the same."""
        can_wrap = not config.options.get("find_unused_parameters")
        return self.hooks["fp16" if config.hook == "fp16_wrapper" and not can_wrap else config.hook]

    def ignore(self, module: Any, names: list[str]) -> None:
        """Leave parameters out of a wrapper."""
        self._ddp._set_params_and_buffers_to_ignore_for_model(module, names)

    def step_in_backward(self, parameters: Any, options: dict[str, Any]) -> None:
        """Let SGD step parameters in backward."""
        from torch.distributed.optim import _apply_optimizer_in_backward

        ddp_on_cpu.stand_in_for_streams()
        _apply_optimizer_in_backward(self.lib.optim.SGD, parameters, options)

    def settle(self) -> None:
        """Wait for sums of delayed parameters, for which torch's backward does not wait."""
        self._dist.barrier(self.group)

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a tensor over an array."""
        return self.lib.from_numpy(array)

    def cast(self, tensor: Any, name: str) -> Any:
        """Return a tensor in another dtype."""
        return tensor.to(getattr(self.lib, name))

    def array(self, tensor: Any) -> Any:
        """Return values as an array of their own; None for None."""
        if tensor is None:
            return None
        dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
        return np.array(dense.double().numpy())


class OurLibrary:
    """This library over a process group.

    Args:
        group: The ranks.
    """

    def __init__(self, group: Any) -> None:
        import gradmesh as gm

        self.lib, self.nn, self.group = gm, gm.nn, group
        self.rank = group.rank
        hooks = gm.ddp.comm_hooks
        self.hooks = {
            "allreduce": hooks.allreduce_hook,
            "fp16": hooks.fp16_compress_hook,
            "fp16_wrapper": hooks.fp16_compress_wrapper(hooks.allreduce_hook),
            "noop": hooks.noop_hook,
            "halving": lambda group, bucket: hooks.allreduce_hook(group, bucket).then(
                lambda value: value / 2
            ),
        }

    def wrap(self, module: Any, config: Config, options: dict[str, Any]) -> Any:
        """Return the wrapped module."""
        if config.mixed is not None:
            param, reduce = config.mixed
            chosen = self.lib.ddp.MixedPrecision(param_dtype=param, reduce_dtype=reduce)
            options = {**options, "mixed_precision": chosen}
        return self.lib.DDP(module, process_group=self.group, **options)

    def hook(self, config: Config) -> Any:
        """Return the hook."""
        return self.hooks[config.hook]

    def ignore(self, module: Any, names: list[str]) -> None:
        """Leave parameters out of a wrapper."""
        self.lib.ddp.set_params_and_buffers_to_ignore(module, names)

    def step_in_backward(self, parameters: Any, options: dict[str, Any]) -> None:
        """Let SGD step parameters in backward."""
        self.lib.ddp.apply_optimizer_in_backward(self.lib.optim.SGD, parameters, options)

    def settle(self) -> None:
        """Do nothing: backward returns averages."""

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a tensor over an array."""
        return self.lib.from_numpy(array)

    def cast(self, tensor: Any, name: str) -> Any:
        """Return a tensor in another dtype."""
        return tensor.to(dtype=name)

    def array(self, tensor: Any) -> Any:
        """Return values as an array of their own; None for None."""
        if tensor is None:
            return None
        dense = tensor.to_dense() if tensor.is_sparse else tensor.data
        return np.array(dense, np.float64)
