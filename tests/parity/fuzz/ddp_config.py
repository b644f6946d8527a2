"""One random configuration: a small module, the wrapper's options, the steps of the ranks."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

BLOCKS = ("linear", "linear", "norm", "shared", "frozen", "double", "buffer", "vector")
EXACT_HOOKS = ("", "allreduce", "noop", "halving")
MIXED = ("bfloat16", "float16", "float32")
SHORT_HOOKS = ("fp16", "fp16_wrapper")
STEPPED = ("all_in_backward", "last_in_backward")
EXTRAS = ("ignored", "delayed", *STEPPED, "two_forwards", "evaluates")
FAULTS = ("unused", "graph_changed", "all_frozen", "hook_twice", "hook_not_callable")


@dataclasses.dataclass(frozen=True)
class Config:
    """What both libraries run; plain values only."""

    seed: int
    world: int
    width: int
    first: str
    """The layer that takes inputs: linear, embedding or sparse."""
    blocks: tuple[str, ...]
    """Layers in the middle; each is added to its input."""
    spare: bool
    """Whether there is a parameter that no forward uses."""
    options: dict[str, Any]
    """Of the wrapper, by torch's names."""
    steps: tuple[int, ...]
    """How many steps each rank has inputs for."""
    micro: tuple[int, ...]
    """Micro-batches of each step: all but the last under no_sync."""
    gates: str
    """Which blocks run: all, ranks (others on each rank), steps (others in each step), mixed."""
    divide_by_initial: bool
    throws: bool
    """Whether a rank without inputs ends the training of all."""
    dtype: str
    """Of the module."""
    extra: str
    """What else is done: last.bias is ignored, the last layer delayed, all parameters or those of
    the last layer are stepped in backward, two forwards have one backward, or a forward without
    gradients follows each step."""
    hook: str
    mixed: tuple[str | None, str | None] | None
    """param_dtype and reduce_dtype."""
    momentum: float
    zero: str
    """How gradients are reset: to None, to zero, or never."""
    fault: str
    """What is done wrong on purpose, or nothing."""

    @property
    def is_uneven(self) -> bool:
        """Return whether the ranks have inputs for different numbers of steps."""
        return len(set(self.steps)) > 1

    def full(self) -> Config:
        """Return the configuration in float64, which has the same values."""
        hook = "allreduce" if self.hook in SHORT_HOOKS else self.hook
        # torch delays float32 only.
        extra = "" if self.extra == "delayed" else self.extra
        return dataclasses.replace(self, dtype="float64", mixed=None, hook=hook, extra=extra)

    def runs(self, block: int, rank: int, step: int) -> bool:
        """Return whether a block takes part in a step of a rank."""
        if self.fault == "unused":
            return step != 1 or block != 0
        if self.fault == "graph_changed":
            return step < 2 or block != 0
        by = {"all": (), "ranks": (rank,), "steps": (step,), "mixed": (rank, step)}[self.gates]
        return not by or random.Random(f"{self.seed} {block} {by}").random() < 0.6


PLAINEST = Config(
    seed=0,
    world=2,
    width=2,
    first="linear",
    blocks=("linear",),
    spare=False,
    options={},
    steps=(1, 1),
    micro=(1,) * 5,
    gates="all",
    divide_by_initial=True,
    throws=False,
    dtype="float32",
    extra="",
    hook="",
    mixed=None,
    momentum=0.0,
    zero="none",
    fault="",
)
# Blocks, options and steps become fewer one by one; the seed stays, for the values.
SIMPLER_FIELDS = tuple(
    field.name
    for field in dataclasses.fields(Config)
    if field.name not in ("seed", "blocks", "options", "steps", "fault")
)


def draw(seed: int) -> Config:
    """Return the configuration of a seed."""
    rng = random.Random(seed)
    world = rng.choice((2, 2, 3))
    fault = rng.choice(FAULTS) if rng.random() < 0.15 else ""
    mixed, extra, dtype = None, "", "float32"
    if not fault and rng.random() < 0.15:
        mixed = rng.choice((None, "bfloat16", "float16")), rng.choice(MIXED)
    elif not fault and rng.random() < 0.3:
        extra = rng.choice(EXTRAS)
    is_apart = extra in ("delayed", *STEPPED, "two_forwards")
    if not fault and mixed is None and not is_apart and rng.random() < 0.15:
        dtype = rng.choice(("float16", "bfloat16"))
    blocks = tuple(rng.choice(BLOCKS) for _ in range(rng.randrange(1, 5)))
    # What has another dtype by nature, and what multiplies the error of short dtypes.
    if mixed is not None or dtype != "float32":
        blocks = tuple("linear" if block in ("double", "norm") else block for block in blocks)
    # The second forward would change buffers that the first one's backward needs.
    if extra == "two_forwards":
        blocks = tuple("vector" if block in ("buffer", "norm") else block for block in blocks)
    if fault:
        blocks = ("linear", *blocks)
    first = rng.choice(("linear", "linear", "embedding", "sparse"))
    if first == "sparse" and (mixed is not None or is_apart or dtype != "float32"):
        first = "embedding"
    graph = rng.choice(("plain", "plain", "find", "find", "skip", "static", "static+find"))
    if fault == "graph_changed":
        graph = "static"
    elif fault or is_apart:
        graph = "plain"
    options = _options(rng, graph)
    gates = {
        "find": rng.choice(("all", "ranks", "steps", "mixed")),
        "skip": rng.choice(("all", "steps")),
    }
    count = rng.randrange(2, 5)
    steps = tuple([count] * world)
    # In torch ranks without inputs send the usage of their last pass, or memory that was never
    # written, and cannot follow static graphs, skipped buckets or rows: nothing to compare with.
    can_join = graph == "plain" or (graph == "find" and gates["find"] == "all")
    if can_join and first != "sparse" and not fault and not extra and rng.random() < 0.7:
        steps = tuple(rng.randrange(0 if rank else 1, 5) for rank in range(world))
    hook = rng.choice(EXACT_HOOKS * 2 + SHORT_HOOKS) if rng.random() < 0.4 else ""
    if mixed is not None or fault or is_apart or first == "sparse":
        hook = ""
    throws = len(set(steps)) > 1 and rng.random() < 0.2
    micro = _micro(rng, graph, fault)
    # Neither library steps under no_sync.
    if extra in STEPPED:
        micro = (1,) * len(micro)
    return Config(
        seed=seed,
        world=world,
        width=rng.randrange(2, 6),
        first=first,
        blocks=blocks,
        spare=graph != "plain" and len(set(steps)) == 1 and rng.random() < 0.5,
        options=options,
        steps=steps,
        micro=micro,
        gates=gates.get(graph, "all"),
        divide_by_initial=rng.random() < 0.5,
        throws=throws,
        dtype=dtype,
        extra=extra,
        hook=hook,
        mixed=mixed,
        momentum=0.0 if first == "sparse" else rng.choice((0.0, 0.9)),
        zero=rng.choice(("none", "none", "zero", "never")) if first != "sparse" else "none",
        fault=fault,
    )


def _micro(rng: random.Random, graph: str, fault: str) -> tuple[int, ...]:
    micro = [rng.choice((1, 1, 1, 2, 3)) for _ in range(5)]
    # torch fails where a static graph begins under no_sync: seldom, since that costs a restart,
    # and not in a graph that changes later.
    if graph.startswith("static") and (fault or rng.random() < 0.9):
        micro[0] = 1
    return tuple(micro)


def _options(rng: random.Random, graph: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    cap = rng.choice((None, 1e-4, 1e-3, "list"))
    if cap == "list":
        options["bucket_cap_mb_list"] = [1e-4, 1e-3]
    elif cap is not None:
        options["bucket_cap_mb"] = cap
    if graph in ("find", "skip", "static+find"):
        options["find_unused_parameters"] = True
    if graph == "skip":
        options["skip_all_reduce_unused_params"] = True
    if graph.startswith("static"):
        options["static_graph"] = True
    for name in ("gradient_as_bucket_view", "batched_grad_copy"):
        if rng.random() < 0.4:
            options[name] = True
    if rng.random() < 0.3:
        options[rng.choice(("forward_sync_buffers", "broadcast_buffers"))] = rng.random() < 0.4
    if rng.random() < 0.1:
        options["init_sync"] = False
    return options


def simpler(config: Config) -> Iterator[Config]:
    """Yield configurations with one thing less, for shrinking."""
    for place in range(len(config.blocks)):
        rest = config.blocks[:place] + config.blocks[place + 1 :]
        if rest:
            yield dataclasses.replace(config, blocks=rest)
    for name in config.options:
        rest_of = {key: value for key, value in config.options.items() if key != name}
        yield dataclasses.replace(config, options=rest_of)
    for name in SIMPLER_FIELDS:
        value = getattr(PLAINEST, name)
        if getattr(config, name) != value:
            fields = {name: value}
            if name == "world":
                fields["steps"] = config.steps[:2]
            yield dataclasses.replace(config, **fields)
    if config.is_uneven:
        yield dataclasses.replace(config, steps=(max(config.steps),) * config.world)
    if max(config.steps) > 1:
        fewer = tuple(min(count, max(config.steps) - 1) for count in config.steps)
        yield dataclasses.replace(config, steps=fewer)
