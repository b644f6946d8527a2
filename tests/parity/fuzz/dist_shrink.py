"""Make a program that fails smaller, as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tests.parity.fuzz.dist_graph import Call, Graph, Leaf, Op, Program, Stage, Step, defined
from tests.parity.fuzz.dist_local import Local

# Where calls run at the same time a failure may need luck.
_ATTEMPTS = 3


def shrink(
    program: Program, compare: Callable[[Program], list[str]], seconds: float = 60.0
) -> Program:
    """Return the smallest program found in some time that fails as this one does."""
    wanted, until = kind(compare(program)), time.monotonic() + seconds

    def fails(candidate: Program) -> bool:
        many = candidate.overlaps or len(candidate.graphs) > 1
        return any(kind(compare(candidate)) == wanted for _ in range(_ATTEMPTS if many else 1))

    while wanted:
        for candidate in simpler(program):
            if time.monotonic() > until:
                return program
            if fails(candidate):
                program = candidate
                break
        else:
            break
    return program


def kind(texts: Sequence[str]) -> str:
    """Return in which way a program failed; nothing if it did not."""
    if not texts:
        return ""
    head = texts[0].split(":")[0]
    return "differs" if head.startswith(("round", "after")) else head


def simpler(program: Program) -> Iterator[Program]:
    """Yield programs with one thing less; some make no sense, and fail in a way of their own."""
    if len(program.graphs) > 1:
        for graph in program.graphs:
            yield replace(program, graphs=(graph,))
    if program.rounds > 1:
        yield replace(program, rounds=1)
    if program.optimizer:
        yield replace(program, optimizer="")
    if program.overlaps:
        yield replace(program, overlaps=False)
    for place, graph in enumerate(program.graphs):
        for smaller in _graphs(graph):
            graphs = (*program.graphs[:place], smaller, *program.graphs[place + 1 :])
            yield replace(program, graphs=graphs)
    yield from _with_leaves(program)
    for place, leaf in enumerate(program.leaves):
        rest = program.leaves[:place], program.leaves[place + 1 :]
        yield replace(program, leaves=rest[0] + rest[1])
        for plain in _leaves(leaf):
            yield replace(program, leaves=(*rest[0], plain, *rest[1]))


def _leaves(leaf: Leaf) -> Iterator[Leaf]:
    if leaf.owner:
        yield replace(leaf, owner=0)
    if leaf.grad:
        yield replace(leaf, grad=False)
    if leaf.dtype != "float64":
        yield replace(leaf, dtype="float64")


def _with_leaves(program: Program) -> Iterator[Program]:
    """Yield programs in which one operation's input, or a leaf, takes the place of its result."""
    local = Local(program)
    try:
        local.run()
    except Exception:
        return
    known = local.shapes | {leaf.id: (leaf.shape, leaf.dtype) for leaf in program.leaves}
    ops = [step for graph in program.graphs for step in graph.steps() if isinstance(step, Op)]
    for op in ops:
        for value in op.inputs:
            if known[value] == known[op.out]:
                yield _without(program, op, value)
        leaf = Leaf(op.out, 0, *known[op.out], grad=True)
        smaller = _without(program, op, op.out)
        yield replace(smaller, leaves=(*program.leaves, leaf))


def _without(program: Program, op: Op, value: int) -> Program:
    """Return a program without an operation, whose result is another value from now on."""

    def name(one: int) -> int:
        return value if one == op.out else one

    def stage(one: Stage) -> Stage:
        roots = tuple(map(name, one.roots))
        return replace(one, steps=_drop(one.steps, op, name), roots=roots)

    graphs = [replace(one, stages=tuple(map(stage, one.stages))) for one in program.graphs]
    return replace(program, graphs=tuple(graphs))


def _drop(steps: Sequence[Step], op: Op, name: Callable[[int], int]) -> tuple[Step, ...]:
    kept: list[Step] = []
    for step in steps:
        if isinstance(step, Call):
            outputs = tuple(dict.fromkeys(map(name, step.outputs)))
            renamed = replace(step, outputs=outputs, spare=tuple(map(name, step.spare)))
            kept += _inside(renamed, _drop(step.steps, op, name))
        elif step is not op:
            kept.append(replace(step, inputs=tuple(map(name, step.inputs))))
    return tuple(kept)


def _inside(call: Call, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return a call with other steps, or nothing if it is useless."""
    outputs = tuple(out for out in call.outputs if out in defined(steps))
    return (replace(call, steps=steps, outputs=outputs),) if outputs else ()


def _graphs(graph: Graph) -> Iterator[Graph]:
    if graph.driver:
        yield replace(graph, driver=0)
    stages = graph.stages
    for place in range(len(stages) - 1):
        first, second = stages[place : place + 2]
        joined = replace(second, steps=first.steps + second.steps)
        yield replace(graph, stages=(*stages[:place], joined, *stages[place + 2 :]))
    if len(stages) > 1:
        yield replace(graph, stages=stages[:-1])
    for place, stage in enumerate(stages):
        for smaller in _stages(stage):
            yield replace(graph, stages=(*stages[:place], smaller, *stages[place + 1 :]))


def _stages(stage: Stage) -> Iterator[Stage]:
    if stage.there:
        yield replace(stage, there=False)
    if stage.mode == "fast":
        yield replace(stage, mode="smart")
    if stage.fails:
        yield replace(stage, fails=False)
    if len(stage.roots) > 1:
        for root in dict.fromkeys(stage.roots):
            yield replace(stage, roots=(root,))
    for steps in _steps(stage.steps):
        yield replace(stage, steps=steps)


def _steps(steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    for place, step in enumerate(steps):
        before, after = steps[:place], steps[place + 1 :]
        yield before + after
        if isinstance(step, Call):
            yield before + step.steps + after
            for call in _calls(step):
                yield (*before, call, *after)
            for inner in _steps(step.steps):
                yield before + _inside(step, inner) + after
        elif step.name == "total":
            for value in step.inputs:
                yield (*before, Op(step.out, "sum", (value,)), *after)


def _calls(call: Call) -> Iterator[Call]:
    if call.how != "sync":
        yield replace(call, how="sync")
    if call.worker > 1:
        yield replace(call, worker=1)
    if call.spare:
        yield replace(call, spare=())
    if len(call.outputs) > 1:
        for out in call.outputs:
            yield replace(call, outputs=tuple(kept for kept in call.outputs if kept != out))
