"""Draw a random program of distributed autograd from a seed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from tests.parity.fuzz import dist_ops
from tests.parity.fuzz.dist_graph import (
    ALONE,
    HERE,
    LATER,
    LENT,
    STAYS,
    WORKERS,
    Call,
    Graph,
    Leaf,
    Op,
    Program,
    Stage,
    Step,
    defined,
    walk,
)
from tests.parity.fuzz.dist_local import Local

SHAPES = ((), (0,), (1,), (3,), (2,), (2, 3), (3, 2), (3, 3), (1, 3), (0, 3), (2, 1, 3))
# Mostly those that fit each other.
_OFTEN = ((3,), (2, 3), (3, 3), (3, 3), ())
_DEEPEST = 3
_MOST_ELEMENTS = 64
_TRIES = 12


def draw(seed: int) -> Program:
    """Return the program of a seed."""
    return _Drawing(seed).program()


class _Drawing:
    """The state while a program is drawn.

    Args:
        seed: Of the program.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.next_id = 0
        self.overlaps = self.rng.random() < 0.4
        # Where the order of sums is open nothing may cancel, or no bound would hold.
        self.signed = not self.overlaps and self.rng.random() < 0.8

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def program(self) -> Program:
        rng = self.rng
        leaves = tuple(self.leaf(place) for place in range(rng.randrange(2, 6)))
        bare = Program(self.seed, self.signed, self.overlaps, leaves, ())
        count = 2 if rng.random() < 0.25 else 1
        graphs = []
        for _ in range(count):
            scope = {leaf.id: leaf.make(bare) for leaf in leaves}
            graphs.append(self.graph(scope, rng.randrange(WORKERS) if count > 1 else 0))
        trains = count == 1 and rng.random() < 0.15
        program = replace(
            bare,
            graphs=tuple(graphs),
            rounds=2 if trains or rng.random() < 0.1 else 1,
            optimizer=rng.choice(("sync", "async")) if trains else "",
        )
        if count == 1 and rng.random() < 0.5:
            program = _with_failures(program)
        return self.with_modes(program) if rng.random() < 0.6 else program

    def with_modes(self, program: Program) -> Program:
        """Let passes be fast that may be: those whose roots depend on every message.

        None that fails: zeros of a fast pass reach fragile operations that a local one does not.
        """
        local = Local(program)
        local.run()
        used = iter(local.used)
        graphs = []
        for graph in program.graphs:
            stages = []
            for stage in graph.stages:
                fast = next(used) and not stage.there and not stage.fails
                stages.append(replace(stage, mode="fast") if fast else stage)
            graphs.append(replace(graph, stages=tuple(stages)))
        return replace(program, graphs=tuple(graphs))

    def leaf(self, place: int) -> Leaf:
        rng = self.rng
        shape = rng.choice(_OFTEN if rng.random() < 0.6 else SHAPES)
        dtype = rng.choice(("float64", "float64", "float32"))
        # One at least has a gradient.
        grad = place == 0 or rng.random() < 0.8
        return Leaf(self.new_id(), rng.randrange(WORKERS), shape, dtype, grad)

    def graph(self, scope: dict[int, Any], driver: int) -> Graph:
        count = self.rng.choice((1, 1, 1, 2, 3))
        return Graph(driver, tuple(self.stage(scope) for _ in range(count)))

    def stage(self, scope: dict[int, Any]) -> Stage:
        rng = self.rng
        steps = self.steps(scope, 0, rng.randrange(1, 7))
        ids = [value for value, tensor in scope.items() if tensor.requires_grad]
        newest = ids[-4:]
        if rng.random() < 0.15:
            # The root stays where it is made, and the pass begins there.
            root = self.root(scope, rng.choice(newest))
            how = rng.choice(STAYS)
            call = Call(how, rng.randrange(WORKERS), (root,), (root.out,))
            return Stage((*steps, call), (root.out,), there=True)
        roots = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            if roots and rng.random() < 0.1:
                roots.append(roots[-1])
                continue
            made = self.root(scope, rng.choice(newest if rng.random() < 0.7 else ids))
            steps.append(made)
            roots.append(made.out)
        return Stage(tuple(steps), tuple(roots))

    def root(self, scope: dict[int, Any], value: int) -> Op:
        """Draw a loss that a value takes part in, and mostly some of the newest."""
        name, inputs = "sum", (value,)
        if self.rng.random() < 0.7:
            name, inputs = "total", (value, *self.rng.choices(list(scope)[-5:], k=2))
        made = Op(self.new_id(), name, inputs)
        scope[made.out] = dist_ops.run(name, [scope[one] for one in inputs], ())
        return made

    def steps(self, scope: dict[int, Any], depth: int, count: int) -> list[Step]:
        found: list[Step] = []
        for _ in range(count):
            if depth < _DEEPEST and self.rng.random() < 0.6:
                found.append(self.call(scope, depth))
            else:
                found.append(self.op(scope))
        return found

    def call(self, scope: dict[int, Any], depth: int) -> Call:
        rng = self.rng
        ways = (*HERE, *HERE, LENT, *STAYS, *(LATER * 2 if self.overlaps else ()))
        how = rng.choice(ways)
        inner = dict(scope)
        steps = tuple(self.steps(inner, depth + 1, rng.choice((1, 1, 1, 2, 3))))
        made = sorted(defined(steps))
        outputs = tuple(rng.sample(made, rng.randrange(1, len(made) + 1)))
        if how in ALONE:
            outputs = (made[-1],)
        spare = (rng.choice(list(scope)),) if rng.random() < 0.15 else ()
        for value in outputs:
            scope[value] = inner[value]
        return Call(how, rng.randrange(WORKERS), steps, outputs, spare)

    def op(self, scope: dict[int, Any]) -> Op:
        """Draw an operation that fits some values; scaling fits all."""
        rng = self.rng
        for _ in range(_TRIES):
            name = rng.choice(list(dist_ops.OPS))
            if name == "detach" and rng.random() < 0.7:
                continue  # cuts off what is before it
            made = self.fitting(scope, name)
            if made is not None:
                return made
        made = self.fitting(scope, "scale")
        assert made is not None
        return made

    def fitting(self, scope: dict[int, Any], name: str) -> Op | None:
        rng = self.rng
        tensors, numbers, _ = dist_ops.OPS[name]
        ids = list(scope)
        # The newest more often: deep graphs are worth more than wide ones.
        inputs = tuple(rng.choice(ids[-3:] if rng.random() < 0.5 else ids) for _ in range(tensors))
        options = tuple(rng.randrange(0, 3) for _ in range(numbers))
        try:
            result = dist_ops.run(name, [scope[value] for value in inputs], options)
        except Exception:
            return None  # shapes that do not fit
        if result.data.size > _MOST_ELEMENTS:
            return None
        made = Op(self.new_id(), name, inputs, options)
        scope[made.out] = result
        return made


def _with_failures(program: Program) -> Program:
    """Let passes fail once that follow a fragile operation."""
    (graph,) = program.graphs
    stages, seen = [], False
    for stage in graph.stages:
        names = [step.name for step in walk(stage.steps) if isinstance(step, Op)]
        seen = seen or "fragile" in names
        stages.append(replace(stage, fails=seen))
    return replace(program, graphs=(replace(graph, stages=tuple(stages)),))
