"""One random program of distributed autograd: leaves, calls between workers, backward passes.

Plain values only. The `repr` of a program is what workers receive, and what a replay is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

import gradmesh as gm

WORKERS = 4

HERE = ("sync", "async", "remote", "proxy", "module")
"""Ways of a call whose results come to the caller at once."""
LATER = ("later", "proxy later", "module later")
"""Ways of a call that the caller waits for when it needs a result."""
STAYS = ("ref", "proxy ref")
"""Kinds of calls whose only result stays on the worker and that do not block the caller."""
LENT = "lent"
"""A call that returns references to its results."""
ALONE = ("remote", *STAYS)
"""Ways of a call that have exactly one result."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A tensor that some worker holds; `grad` says whether it requires a gradient."""

    id: int
    owner: int
    shape: tuple[int, ...]
    dtype: str
    grad: bool

    def make(self, program: Program) -> gm.Tensor:
        """Return the tensor; the same values on every worker."""
        rng = np.random.default_rng([program.seed, self.id])
        low = -1.0 if program.signed else 0.1
        data = np.asarray(rng.uniform(low, 1.0, self.shape), self.dtype)
        return gm.tensor(data, requires_grad=self.grad)


@dataclasses.dataclass(frozen=True)
class Op:
    """An operation on the worker that runs the steps."""

    out: int
    name: str
    inputs: tuple[int, ...]
    options: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Call:
    """Steps that another worker runs; `spare` are arguments that it does not use."""

    how: str
    worker: int
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    spare: tuple[int, ...] = ()


Step: TypeAlias = Op | Call


@dataclasses.dataclass(frozen=True)
class Stage:
    """Steps of a forward, and a backward pass; `there` begins it where the only root is kept."""

    steps: tuple[Step, ...]
    roots: tuple[int, ...]
    there: bool = False
    mode: str = "smart"
    fails: bool = False
    """Whether the pass runs once before, while fragile operations fail."""


@dataclasses.dataclass(frozen=True)
class Graph:
    """What happens in one context, which the driver opens; all stages but the last retain it."""

    driver: int
    stages: tuple[Stage, ...]

    def steps(self) -> Iterator[Step]:
        """Yield all steps, those inside of calls after their call."""
        for stage in self.stages:
            yield from walk(stage.steps)


@dataclasses.dataclass(frozen=True)
class Program:
    """Graphs that run at the same time, each in a context of its own, over the same leaves."""

    seed: int
    signed: bool
    """Whether values are of both signs; else no sum of gradients can cancel."""
    overlaps: bool
    """Whether calls of one context may run at the same time."""
    leaves: tuple[Leaf, ...]
    graphs: tuple[Graph, ...]
    rounds: int = 1
    """How often the graphs run, each time in new contexts."""
    optimizer: str = ""
    """Mode of a distributed optimizer that steps after each round, or nothing."""

    def call(self, path: Sequence[int]) -> Call:
        """Return a call by graph, stage and its place among the steps of each level."""
        steps = self.graphs[path[0]].stages[path[1]].steps
        for place in path[2:-1]:
            step = steps[place]
            assert isinstance(step, Call)
            steps = step.steps
        found = steps[path[-1]]
        assert isinstance(found, Call)
        return found

    def __str__(self) -> str:
        lines = [_of_leaf(leaf) for leaf in self.leaves]
        if self.optimizer:
            lines.append(f"optimizer = DistributedOptimizer(SGD, leaves, mode={self.optimizer!r})")
        if len(self.graphs) > 1:
            lines.append("# at the same time:")
        for graph in self.graphs:
            twice = f"  # {self.rounds} times" if self.rounds > 1 else ""
            lines.append(f"with context() as ctx:  # on worker{graph.driver}{twice}")
            for stage in graph.stages:
                for step in stage.steps:
                    lines += _of_step(step, "    ")
                keep = stage is not graph.stages[-1]
                names = ", ".join(f"v{root}" for root in stage.roots)
                begun = f"{names}.backward(ctx" if stage.there else f"backward(ctx, [{names}]"
                mode = ', mode="fast"' if stage.mode == "fast" else ""
                if stage.fails:
                    lines.append(f"    {begun}, retain_graph=True{mode})  # fragile ones fail")
                lines.append(f"    {begun}, retain_graph={keep}{mode})")
            if self.optimizer:
                lines.append("    optimizer.step(ctx)")
        return "\n".join(lines)


def walk(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield steps and those inside of calls."""
    for step in steps:
        yield step
        if isinstance(step, Call):
            yield from walk(step.steps)


def defined(steps: Sequence[Step]) -> set[int]:
    """Return the values that steps leave to those after them."""
    return {
        out for step in steps for out in ((step.out,) if isinstance(step, Op) else step.outputs)
    }


def needed(call: Call) -> tuple[int, ...]:
    """Return the values that travel as arguments of a call, in the order of their first use."""
    found: dict[int, None] = {}
    _collect(call.steps, set(), found)
    return tuple(dict.fromkeys((*found, *call.spare)))


def _collect(steps: Sequence[Step], known: set[int], found: dict[int, None]) -> None:
    for step in steps:
        wanted = step.inputs if isinstance(step, Op) else needed(step)
        found.update(dict.fromkeys(value for value in wanted if value not in known))
        known |= defined((step,))


def _of_leaf(leaf: Leaf) -> str:
    grad = ", requires_grad=True" if leaf.grad else ""
    return f"v{leaf.id} = tensor({leaf.shape}, {leaf.dtype}{grad})  # on worker{leaf.owner}"


def _of_step(step: Step, indent: str) -> list[str]:
    if isinstance(step, Op):
        args = ", ".join([f"v{value}" for value in step.inputs] + [str(n) for n in step.options])
        return [f"{indent}v{step.out} = {step.name}({args})"]
    outs = ", ".join(f"v{out}" for out in step.outputs) or "_"
    spare = f", not used: {', '.join(f'v{value}' for value in step.spare)}" if step.spare else ""
    lines = [f"{indent}{outs} = call on worker{step.worker}, {step.how}{spare}:"]
    for inner in step.steps:
        lines += _of_step(inner, indent + "    ")
    return lines
