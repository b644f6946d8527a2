"""Post-local SGD on both sides: one loop, run by torch's ranks and by ours."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

WIDTH = 5


def torch_task(group: Any, config: Any) -> Any:
    """Run as a rank of torch."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hooks
    from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager
    from torch.distributed.optim import PostLocalSGDOptimizer

    def averager() -> Any:
        if config["sizes"]:
            return hierarchical_model_averager.HierarchicalModelAverager(
                OrderedDict(config["sizes"]), config["warmup"], group
            )
        return averagers.PeriodicModelAverager(config["period"], config["warmup"], group)

    subgroup = dist.new_subgroups(2, group=group)[0] if config["subgroup"] else None
    state = hooks.PostLocalSGDState(group, subgroup, config["warmup"], subgroup is not None)
    return _train(
        torch,
        lambda module: torch.nn.parallel.DistributedDataParallel(module, process_group=group),
        (state, hooks.post_localSGD_hook),
        lambda optimizer: PostLocalSGDOptimizer(optimizer, averager()),
        dist.get_rank(group),
        config,
    )


def our_task(group: Any, config: Any) -> Any:
    """Run as a rank of ours."""
    import gradmesh as gm

    def averager() -> Any:
        if config["sizes"]:
            return gm.ddp.HierarchicalModelAverager(dict(config["sizes"]), config["warmup"], group)
        return gm.ddp.PeriodicModelAverager(config["period"], config["warmup"], group)

    subgroup = gm.process_group.new_subgroups(2, group) if config["subgroup"] else None
    hooks = gm.ddp.comm_hooks
    state = hooks.PostLocalSGDState(group, subgroup, config["warmup"], subgroup is not None)
    return _train(
        gm,
        lambda module: gm.DDP(module, process_group=group),
        (state, hooks.post_local_sgd_hook),
        lambda optimizer: gm.ddp.PostLocalSGDOptimizer(optimizer, averager()),
        group.rank,
        config,
    )


def _train(lib: Any, wrap: Any, hook: Any, post_local: Any, rank: int, config: Any) -> Any:
    """Return parameters after every step, and the averager's step in the end."""
    module = lib.nn.Linear(WIDTH, 3)
    rng = np.random.default_rng(0)
    with lib.no_grad():
        for parameter in module.parameters():
            value = rng.standard_normal(tuple(parameter.shape)).astype(np.float32)
            parameter.copy_(lib.from_numpy(value))
    ddp = wrap(module)
    ddp.register_comm_hook(*hook)

    def optimizer() -> Any:
        return post_local(lib.optim.SGD(module.parameters(), lr=0.05, momentum=0.9))

    opt, seen = optimizer(), []
    for step in range(config["steps"]):
        if step == config["reload_at"]:
            saved, opt = opt.state_dict(), optimizer()
            opt.load_state_dict(saved)
        x = np.random.default_rng([rank, step]).standard_normal((4, WIDTH)).astype(np.float32)
        opt.zero_grad()
        (ddp(lib.from_numpy(x)) ** 2).mean().backward()
        opt.step()
        seen.append([np.array(p.detach().numpy()) for p in module.parameters()])
    return seen, opt.state_dict()["step"]
