"""Run a program in this process with local autograd: the reference for the workers.

A message copies its tensors and gives them a node of their own, as on workers: what a worker used
twice is then added there first. That is the only difference to a plain local graph, and it makes
gradients equal bit for bit. `plain` leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import gradmesh as gm
from gradmesh.engine.autograd import Function, reachable_nodes, run_backward
from tests.parity.fuzz import dist_ops
from tests.parity.fuzz.dist_graph import (
    LENT,
    STAYS,
    WORKERS,
    Call,
    Graph,
    Op,
    Program,
    Step,
    needed,
)
from tests.parity.fuzz.dist_outcome import GraphOutcome, Outcome

OPTIMIZER = {"lr": 0.1, "momentum": 0.9}


class _Carried(Function):
    """Copy tensors, and their gradients in backward."""

    @staticmethod
    def forward(ctx: Any, *arrays: Any) -> Any:
        return tuple(np.array(array, order="C") for array in arrays)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return tuple(grad if grad is None else np.array(grad, order="C") for grad in grads)


class _Ref:
    """A value that stays on a worker."""

    def __init__(self, owner: int, value: Any) -> None:
        self.owner, self.value = owner, value


class Local:
    """All workers in one process.

    Args:
        program: What to run.
        wrong: Operations that others take the place of, to see that a difference is found.
        plain: Let tensors through as they are, without a node for each message.
    """

    def __init__(
        self, program: Program, wrong: Mapping[str, str] | None = None, plain: bool = False
    ) -> None:
        self.program, self.wrong, self.plain = program, wrong, plain
        self.leaves = {leaf.id: leaf.make(program) for leaf in program.leaves}
        self.shapes: dict[int, tuple[tuple[int, ...], str]] = {}
        self.used: list[bool] = []
        """Of each stage that ran: whether its roots depend on every message before, as fast
        passes need it."""
        self._messages: set[Any] = set()

    def run(self) -> Outcome:
        """Return the outcome of the program."""
        trained = [self.leaves[leaf.id] for leaf in self.program.leaves if leaf.grad]
        optimizer = gm.optim.SGD(trained, **OPTIMIZER) if self.program.optimizer else None
        rounds = []
        for _ in range(self.program.rounds):
            maps: list[dict[Any, Any]] = [{} for _ in self.program.graphs]
            pairs = zip(self.program.graphs, maps, strict=True)
            rounds.append([self._graph(graph, into) for graph, into in pairs])
            if optimizer is not None:
                optimizer.step(maps[0])
        return Outcome(rounds, {key: leaf.data for key, leaf in self.leaves.items()})

    def _graph(self, graph: Graph, into: dict[Any, Any]) -> GraphOutcome:
        env: dict[int, Any] = {}
        self._messages = set()
        for leaf in self.program.leaves:
            tensor = self.leaves[leaf.id]
            env[leaf.id] = tensor if leaf.owner == graph.driver else _Ref(leaf.owner, tensor)
        for stage in graph.stages:
            self._steps(stage.steps, env, graph.driver)
            roots = [env[root].value for root in stage.roots] if stage.there else None
            roots = roots or [self._value(env, root, graph.driver) for root in stage.roots]
            self.used.append(self._messages <= set(reachable_nodes(roots)))
            if stage.fails:
                self._fail(roots, into)
            run_backward(roots, retain_graph=stage is not graph.stages[-1], into=into)
        made = env.keys() - self.leaves.keys()
        values = {key: self._raw(env[key]).data.copy() for key in made}
        grads: dict[int, dict[int, Any]] = {worker: {} for worker in range(WORKERS)}
        for leaf in self.program.leaves:
            if self.leaves[leaf.id] in into:
                grads[leaf.owner][leaf.id] = into[self.leaves[leaf.id]]
        return GraphOutcome(values, grads)

    def _fail(self, roots: Sequence[Any], into: dict[Any, Any]) -> None:
        """Run a pass in which fragile operations fail; one that does changes nothing."""
        before = dict(into)
        dist_ops.break_down(True)
        try:
            run_backward(roots, retain_graph=True, into=into)
        except ValueError:
            into.clear()
            into.update(before)
        finally:
            dist_ops.break_down(False)

    def _steps(self, steps: Sequence[Step], env: dict[int, Any], at: int) -> None:
        for step in steps:
            if isinstance(step, Op):
                inputs = [self._value(env, value, at) for value in step.inputs]
                made = dist_ops.run(step.name, inputs, step.options, self.wrong)
                self.shapes[step.out] = made.shape, str(made.dtype)
                env[step.out] = made
            else:
                self._call(step, env, at)

    def _call(self, call: Call, env: dict[int, Any], at: int) -> None:
        names = needed(call)
        inner = dict(zip(names, self._carry([env[name] for name in names]), strict=True))
        self._steps(call.steps, inner, call.worker)
        if call.how in STAYS or call.how == "remote":
            (out,) = call.outputs
            env[out] = _Ref(call.worker, self._value(inner, out, call.worker))
            if call.how == "remote":
                env[out] = self._value(env, out, at)
        elif call.how == LENT:
            for out in call.outputs:
                value = inner[out]
                env[out] = value if isinstance(value, _Ref) else _Ref(call.worker, value)
        else:
            found = self._carry([inner[out] for out in call.outputs])
            env.update(zip(call.outputs, found, strict=True))

    def _value(self, env: dict[int, Any], name: int, at: int) -> Any:
        value = env[name]
        if not isinstance(value, _Ref):
            return value
        return value.value if value.owner == at else self._carry([value.value])[0]

    def _raw(self, value: Any) -> Any:
        return value.value if isinstance(value, _Ref) else value

    def _carry(self, values: Sequence[Any]) -> list[Any]:
        """Return the values of a message after its transfer."""
        if self.plain:
            return list(values)
        received = [
            value if isinstance(value, _Ref) else gm.tensor(np.array(value.data, order="C"))
            for value in values
        ]
        wanted = [
            place
            for place, value in enumerate(values)
            if not isinstance(value, _Ref) and value.requires_grad
        ]
        if wanted:
            outs = _Carried.apply(*[values[place] for place in wanted])
            node = outs[0].grad_fn
            self._messages.add(node if isinstance(node, _Carried) else node.edges[0])
            for place, out in zip(wanted, outs, strict=True):
                received[place] = out
        return received
