"""The module of a configuration and the loop that trains it, in either library."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np

from tests.parity.fuzz.ddp_config import STEPPED, Config
from tests.parity.fuzz.ddp_library import OurLibrary, TorchLibrary

ROWS, BATCH, INPUTS, OUTPUTS = 7, 4, 3, 2


@dataclasses.dataclass
class Outcome:
    """The outcome of one rank."""

    grads: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """By step, by parameter; None where there is none."""
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    buffers: dict[str, Any] = dataclasses.field(default_factory=dict)
    failed_at: int | None = None
    """The step that raised; -1 for the construction."""
    error: str = ""
    kinds: tuple[str, ...] = ()
    """The names of the error's class and of those it is derived from."""


def torch_task(group: Any, config: Config) -> Outcome:
    """Run as a rank of torch."""
    return train(TorchLibrary(group), config)


def our_task(group: Any, config: Config) -> Outcome:
    """Run as a rank of ours."""
    return train(OurLibrary(group), config)


def make_net(lib: Any, config: Config) -> Any:
    """Return the module, with values that follow from the seed."""
    nn, width = lib.nn, config.width

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            if config.first == "linear":
                self.first = nn.Linear(INPUTS, width)
            else:
                self.first = nn.Embedding(ROWS, width, sparse=config.first == "sparse")
            for place, kind in enumerate(config.blocks):
                if kind == "norm":
                    self.add_module(f"b{place}", nn.BatchNorm1d(width))
                elif kind == "vector":
                    setattr(
                        self, f"b{place}", nn.Parameter(lib.tensor(np.zeros(width, np.float32)))
                    )
                elif kind == "buffer":
                    self.register_buffer(f"b{place}", lib.tensor(np.zeros(width, np.float32)))
                elif kind != "shared":
                    made = nn.Linear(width, width)
                    self.add_module(f"b{place}", made.double() if kind == "double" else made)
            self.last = nn.Linear(width, OUTPUTS)
            if config.spare:
                self.spare = nn.Linear(2, 3)

        def forward(self, x: Any, active: Any) -> Any:
            h = self.first(x)
            for place, kind in enumerate(config.blocks):
                if active[place]:
                    h = (h + self.block(place, kind, h)).tanh()
            return self.last(h)

        def block(self, place: int, kind: str, h: Any) -> Any:
            made = getattr(self, f"b{place}", None)
            if kind == "vector":
                return made * h
            if kind == "buffer":
                with lib.lib.no_grad():
                    made += h.detach().mean(0)
                return h * 0.5
            if kind == "double":
                return lib.cast(made(lib.cast(h, "float64")), "float32")
            if kind == "shared":
                # The weights of the last layer, which are used a second time.
                return (h @ self.last.weight.t()) @ self.last.weight
            return made(h)

    net = Net()
    rng = np.random.default_rng(config.seed)
    is_copied = config.options.get("init_sync", True)
    with lib.lib.no_grad():
        for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
            if "num_batches" in name:
                continue
            drawn = rng.standard_normal(tuple(tensor.shape)) * 0.5
            if "running_var" in name:
                drawn = np.abs(drawn) + 0.5
            # Other values on other ranks, which wrapping is to make equal.
            if is_copied and lib.rank:
                drawn += lib.rank
            kind = np.float64 if "64" in str(tensor.dtype) else np.float32
            tensor.copy_(lib.tensor(drawn.astype(kind)))
    if config.dtype != "float32":
        net.to(dtype=getattr(lib.lib, config.dtype))
    frozen = [f"b{place}" for place, kind in enumerate(config.blocks) if kind == "frozen"]
    for name, parameter in net.named_parameters():
        if config.fault == "all_frozen" or name.split(".")[0] in frozen:
            parameter.requires_grad_(False)
    return net


def train(lib: Any, config: Config) -> Outcome:
    """Wrap, train, and record the outcome."""
    seen, step = Outcome(), -1
    net = make_net(lib, config)
    try:
        options = {**config.options, **_prepare(lib, net, config)}
        ddp = lib.wrap(net, config, options)
        _register(lib, ddp, config)
        held = [p for p in net.parameters() if p.requires_grad]
        optimizer = lib.lib.optim.SGD(held, lr=0.1, momentum=config.momentum)
        join = ddp.join(
            divide_by_initial_world_size=config.divide_by_initial,
            enable=config.is_uneven,
            throw_on_early_termination=config.throws,
        )
        with join:
            for step in range(config.steps[lib.rank]):
                _take_step(lib, ddp, optimizer, config, step)
                seen.grads.append({n: lib.array(p.grad) for n, p in net.named_parameters()})
                optimizer.step()
        seen.parameters = {n: lib.array(p) for n, p in net.named_parameters()}
        seen.buffers = {n: lib.array(b) for n, b in net.named_buffers()}
    except Exception as error:
        seen.failed_at, seen.error = step, f"{type(error).__name__}: {error}"
        seen.kinds = tuple(kind.__name__ for kind in type(error).__mro__)
    return seen


def _prepare(lib: Any, net: Any, config: Config) -> dict[str, Any]:
    """Prepare the module for wrapping; return options that name parameters."""
    if config.extra == "ignored":
        lib.ignore(net, ["last.bias"])
    if config.extra in STEPPED:
        among = net if config.extra == "all_in_backward" else net.last
        trained = [p for p in among.parameters() if p.requires_grad]
        lib.step_in_backward(trained, {"lr": 0.1, "momentum": config.momentum})
    if config.extra == "delayed":
        return {
            "delay_all_reduce_named_params": [
                (f"last.{name}", parameter) for name, parameter in net.last.named_parameters()
            ],
            "param_to_hook_all_reduce": net.first.weight,
        }
    return {}


def _register(lib: Any, ddp: Any, config: Config) -> None:
    if config.hook:
        ddp.register_comm_hook(lib.group if config.hook != "noop" else None, lib.hook(config))
    if config.fault == "hook_not_callable":
        ddp.register_comm_hook(None, 1)
    for _ in range(2 if config.fault == "hook_twice" else 0):
        ddp.register_comm_hook(None, lib.hooks["allreduce"])


def _take_step(lib: Any, ddp: Any, optimizer: Any, config: Config, step: int) -> None:
    if config.zero != "never":
        optimizer.zero_grad(set_to_none=config.zero == "none")
    active = [config.runs(block, lib.rank, step) for block in range(len(config.blocks))]
    count = config.micro[step]
    for micro in range(count):
        with contextlib.nullcontext() if micro + 1 == count else ddp.no_sync():
            loss = _loss(lib, ddp, config, step, micro, active)
            if config.extra == "two_forwards":
                loss = loss + _loss(lib, ddp, config, step, micro + count, active)
            loss.backward()
        if config.extra == "delayed":
            lib.settle()
    if config.extra == "evaluates":
        with lib.lib.no_grad():
            _loss(lib, ddp, config, step, count, active)


def _loss(lib: Any, ddp: Any, config: Config, step: int, micro: int, active: Any) -> Any:
    rng = np.random.default_rng([config.seed, lib.rank, step, micro])
    if config.first == "linear":
        x = lib.tensor(rng.standard_normal((BATCH, INPUTS)).astype(np.float32))
        x = x if config.dtype == "float32" else lib.cast(x, config.dtype)
    else:
        x = lib.tensor(rng.integers(0, ROWS, BATCH))
    return (lib.cast(ddp(x, active), "float32") ** 2).mean()
