"""Run programs over real workers: the functions that workers serve, and how steps call others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradmesh as gm
from tests.parity.fuzz import dist_graph, dist_ops
from tests.parity.fuzz.dist_graph import (
    LATER,
    LENT,
    STAYS,
    WORKERS,
    Call,
    Graph,
    Op,
    Program,
    Stage,
    Step,
    needed,
)
from tests.parity.fuzz.dist_local import OPTIMIZER

DEADLINE_S = 30.0
"""Of each call and each backward pass."""


class _Here:
    """This worker's state of the running program."""

    program: Program
    leaves: dict[int, gm.Tensor]
    keepers: list[gm.RRef[Any]]
    modules: list[Any]


@gm.rpc.register
class Keeper:
    """An object that a worker keeps, for calls of its methods."""

    def run(self, path: list[int], values: list[Any]) -> list[Any]:
        """Run the steps of a call."""
        return run(path, values)

    def run_one(self, path: list[int], values: list[Any]) -> Any:
        """Run the steps of a call with one result."""
        return run_one(path, values)


@gm.rpc.register
class Steps(gm.nn.Module):
    """A module whose forward runs the steps of a call."""

    def forward(self, path: list[int], values: list[Any]) -> list[Any]:
        """Run the steps."""
        return run(path, values)


@gm.rpc.register
def install(keepers: list[Any], modules: list[Any]) -> None:
    """Take references to the objects of all workers; they stay for all programs."""
    _Here.keepers, _Here.modules = keepers, modules


@gm.rpc.register
def prepare(text: str) -> list[tuple[int, Any]]:
    """Make this worker's leaves of a program; return references to them."""
    _Here.program = program = eval(text, vars(dist_graph).copy())
    rank = my_rank()
    _Here.leaves = {leaf.id: leaf.make(program) for leaf in program.leaves if leaf.owner == rank}
    return [(key, gm.RRef(leaf)) for key, leaf in _Here.leaves.items()]


@gm.rpc.register
def finish() -> list[tuple[int, Any]]:
    """Return the values of this worker's leaves and drop them."""
    found = [(key, leaf.data.copy()) for key, leaf in _Here.leaves.items()]
    _Here.leaves = {}
    return found


@gm.rpc.register
def break_down(broken: bool) -> None:
    """Let backward passes fail at this worker's fragile operations, or no longer."""
    dist_ops.break_down(broken)


@gm.rpc.register
def gradients() -> tuple[list[tuple[int, Any]], int]:
    """Return this worker's gradients in the caller's context, and how many are of no leaf."""
    ctx = gm.autograd.current_context()
    assert ctx is not None
    found = gm.autograd.get_gradients(ctx)
    own = [(key, found[leaf]) for key, leaf in _Here.leaves.items() if leaf in found]
    return own, len(found) - len(own)


@gm.rpc.register
def run(path: list[int], values: list[Any]) -> list[Any]:
    """Run the steps of a call."""
    call = _Here.program.call(path)
    env = _played(call, path, values)
    if call.how == LENT:
        return [v if isinstance(v, gm.RRef) else gm.RRef(v) for v in _all(call.outputs, env)]
    return _all(call.outputs, env)


@gm.rpc.register
def run_one(path: list[int], values: list[Any]) -> Any:
    """Run the steps of a call; return its only result, as a tensor."""
    call = _Here.program.call(path)
    return _value(_played(call, path, values), call.outputs[0])


@gm.rpc.register
def drive(place: int, refs: list[tuple[int, Any]]) -> tuple[Any, Any, Any]:
    """Run a graph in a context that this worker opens; return its outcome.

    Args:
        place: Which graph.
        refs: References to all leaves.
    """
    return run_graph(_Here.program.graphs[place], place, refs, None)


def my_rank() -> int:
    """Return the number of this worker."""
    return int(gm.rpc.get_worker_info().name.removeprefix("worker"))


def ask_all(function: Any, *args: Any) -> list[Any]:
    """Call a function on all workers at once; return the results in their order."""
    asked = [gm.rpc_async(f"worker{n}", function, args, None, DEADLINE_S) for n in range(WORKERS)]
    return [future.result() for future in asked]


def run_graph(
    graph: Graph, place: int, refs: Sequence[tuple[int, Any]], optimizer: Any
) -> tuple[Any, Any, Any]:
    """Run a graph; return its values, and gradients and strange ones by worker."""
    env: dict[int, Any] = {**dict(refs), **_Here.leaves}
    with gm.autograd.context() as ctx:
        for number, stage in enumerate(graph.stages):
            _play(stage.steps, env, [place, number])
            begin = _pass(stage, env, ctx)
            if stage.fails:
                _fail(begin)
            begin(stage is not graph.stages[-1])
        found = ask_all(gradients)
        # Before the step: values may be leaves, or views of them.
        leaves = dict(refs)
        values = [(key, _value(env, key).data.copy()) for key in env if key not in leaves]
        if optimizer is not None:
            optimizer.step(ctx)
    return values, [grads for grads, _ in found], [strange for _, strange in found]


def _pass(stage: Stage, env: dict[int, Any], ctx: Any) -> Callable[[bool], None]:
    """Return a function that runs a stage's backward pass, given whether the graph is kept."""
    if stage.there:
        ref = env[stage.roots[0]]
        return lambda keep: ref.backward(ctx, keep)
    roots = [_value(env, root) for root in stage.roots]
    return lambda keep: gm.autograd.backward(ctx, roots, keep, stage.mode, DEADLINE_S)


def _fail(begin: Callable[[bool], None]) -> None:
    """Run a pass in which fragile operations fail on all workers."""
    ask_all(break_down, True)
    try:
        begin(True)
    except Exception as error:
        if "broken on purpose" not in str(error):
            raise
    finally:
        ask_all(break_down, False)


def make_optimizer(program: Program, refs: Sequence[tuple[int, Any]]) -> Any:
    """Return the program's optimizer over all leaves with gradients, or None."""
    if not program.optimizer:
        return None
    known = dict(refs)
    trained = [known[leaf.id] for leaf in program.leaves if leaf.grad]
    return gm.optim.DistributedOptimizer(
        gm.optim.SGD, trained, mode=program.optimizer, timeout_s=DEADLINE_S, **OPTIMIZER
    )


def _played(call: Call, path: list[int], values: list[Any]) -> dict[int, Any]:
    env = dict(zip(needed(call), values, strict=True))
    _play(call.steps, env, path)
    return env


def _play(steps: Sequence[Step], env: dict[int, Any], path: list[int]) -> None:
    for place, step in enumerate(steps):
        if isinstance(step, Op):
            inputs = [_value(env, value) for value in step.inputs]
            env[step.out] = dist_ops.run(step.name, inputs, step.options)
        else:
            _call(step, [*path, place], env)
    # Wait for all results, also unused ones: a call must end before its caller, or it would reach a
    # released context.
    for value in _all(list(env), env):
        _wait_made(value)


def _call(call: Call, path: list[int], env: dict[int, Any]) -> None:
    args = (path, _all(needed(call), env))
    to, keeper, module = f"worker{call.worker}", _Here.keepers, _Here.modules
    ref = None
    if call.how in ("sync", LENT):
        found = gm.rpc_sync(to, run, args, None, DEADLINE_S)
    elif call.how in ("async", "later"):
        found = gm.rpc_async(to, run, args, None, DEADLINE_S)
    elif call.how == "proxy":
        found = keeper[call.worker].rpc_sync(DEADLINE_S).run(*args)
    elif call.how == "proxy later":
        found = keeper[call.worker].rpc_async(DEADLINE_S).run(*args)
    elif call.how == "module":
        found = module[call.worker](*args)
    elif call.how == "module later":
        found = module[call.worker].forward_async(*args)
    elif call.how == "proxy ref":
        ref = keeper[call.worker].remote(DEADLINE_S).run_one(*args)
    else:
        ref = gm.remote(to, run_one, args, None, DEADLINE_S)
    if ref is not None:
        if not _Here.program.overlaps:
            _wait_made(ref)
        found = [ref if call.how in STAYS else ref.to_here(DEADLINE_S)]
    if call.how in LATER:
        waiting = _Later(found, call.outputs)
        env.update(dict.fromkeys(call.outputs, waiting))
    else:
        found = found.result() if call.how == "async" else found
        env.update(zip(call.outputs, found, strict=True))


class _Later:
    """Results that have not arrived yet."""

    def __init__(self, future: Any, outputs: tuple[int, ...]) -> None:
        self.future, self.outputs = future, outputs


def _all(names: Sequence[int], env: dict[int, Any]) -> list[Any]:
    """Return values as they are, tensors or references, once they have arrived."""
    for name in names:
        value = env[name]
        if isinstance(value, _Later):
            env.update(zip(value.outputs, value.future.result(), strict=True))
    return [env[name] for name in names]


def _wait_made(value: Any) -> None:
    """Wait until the value of a reference is made; tensors are."""
    if isinstance(value, gm.RRef):
        value.remote_type(DEADLINE_S).result()


def _value(env: dict[int, Any], name: int) -> Any:
    """Return a value as a tensor of this worker."""
    (value,) = _all((name,), env)
    return value.to_here(DEADLINE_S) if isinstance(value, gm.RRef) else value
