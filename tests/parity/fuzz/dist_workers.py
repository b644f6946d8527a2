"""Four workers that run programs, started once; this process is one of them."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping

import gradmesh as gm
from tests.footprint import footprint
from tests.integration.dist_autograd.world import World
from tests.parity.fuzz import dist_calls
from tests.parity.fuzz.dist_graph import WORKERS, Graph, Program
from tests.parity.fuzz.dist_local import Local
from tests.parity.fuzz.dist_outcome import GraphOutcome, Outcome, differences

# What each worker holds between programs: an object and a module, which all others refer to.
_IDLE = {
    "num_owner_rrefs": 2,
    "num_forks": 2 * (WORKERS - 1),
    "num_autograd_contexts": 0,
    "num_current_backward_passes": 0,
}


class _Workers(World):
    module = "tests.parity.fuzz.dist_worker"


class WorkerFleet:
    """The workers, with an object and a module on each that all of them may call."""

    def __init__(self) -> None:
        self._world = _Workers(WORKERS)
        names = [f"worker{rank}" for rank in range(WORKERS)]
        try:
            keepers = [gm.remote(name, dist_calls.Keeper) for name in names]
            modules = [gm.nn.RemoteModule(name, dist_calls.Steps) for name in names]
            dist_calls.ask_all(dist_calls.install, keepers, modules)
            del keepers, modules
            left = self.left_behind()
            assert not left, left
        except BaseException:
            self.close()
            raise

    def run(self, program: Program) -> Outcome:
        """Return the outcome of a program over the workers."""
        made = dist_calls.ask_all(dist_calls.prepare, repr(program))
        refs = [pair for own in made for pair in own]
        optimizer = dist_calls.make_optimizer(program, refs)
        rounds = []
        for _ in range(program.rounds):
            # Those that other workers drive begin first, and run while this one runs its own.
            begun = {
                place: gm.rpc_async(
                    f"worker{graph.driver}", dist_calls.drive, (place, refs), None, 60.0
                )
                for place, graph in enumerate(program.graphs)
                if place
            }
            first = self._first(program.graphs[0], refs, optimizer)
            found = [first, *(begun[place].result() for place in begun)]
            rounds.append([self._outcome(*one) for one in found])
        leaves = [pair for own in dist_calls.ask_all(dist_calls.finish) for pair in own]
        return Outcome(rounds, dict(leaves))

    def _first(self, graph: Graph, refs: list, optimizer: object) -> tuple:
        if graph.driver:
            to = f"worker{graph.driver}"
            return gm.rpc_sync(to, dist_calls.drive, (0, refs), None, 60.0)
        return dist_calls.run_graph(graph, 0, refs, optimizer)

    def _outcome(self, values: list, grads: list, strange: list) -> GraphOutcome:
        by_worker = {worker: dict(own) for worker, own in enumerate(grads)}
        return GraphOutcome(dict(values), by_worker, dict(enumerate(strange)))

    def compare(self, program: Program, wrong: Mapping[str, str] | None = None) -> list[str]:
        """Run a program here and over the workers; return the differences.

        Args:
            program: The program; one that makes no sense locally differs in nothing.
            wrong: Operations that others take the place of in the local run, for tests.
        """
        local = Local(program, wrong)
        try:
            wanted = local.run()
        except Exception as error:
            return [] if wrong else [f"local run: {type(error).__name__}: {error}"]
        stages = [stage for graph in program.graphs for stage in graph.stages]
        if any(s.mode == "fast" and not used for s, used in zip(stages, local.used, strict=False)):
            return []  # would wait for gradients that never come, as it should
        try:
            found = self.run(program)
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]
        return differences(program, found, wanted)

    def left_behind(self, seconds: float = 20.0) -> list[str]:
        """Return what workers still hold while no program runs, after a wait."""
        until = time.monotonic() + seconds
        while (left := self._left()) and time.monotonic() < until:
            threading.Event().wait(0.05)
        return left

    def close(self) -> None:
        """End the workers."""
        self._world.close()

    def _left(self) -> list[str]:
        gc.collect()
        return [
            f"worker{rank}: {name} is {held[name]}, not {count}"
            for rank, held in enumerate(dist_calls.ask_all(footprint))
            for name, count in _IDLE.items()
            if held[name] != count
        ]
