"""From a seed to a verdict: which kind of case it is, whether it differs, and the report if so."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.parity.fuzz import optimizer, schedule, show
from tests.parity.fuzz.compare import compared
from tests.parity.fuzz.generate import generate
from tests.parity.fuzz.graph import Graph
from tests.parity.fuzz.known_differences import explained
from tests.parity.fuzz.shrink import shrink
from tests.parity.fuzz.template import OPS

# Of this many seeds one is an optimizer and one a schedule, the others are graphs.
_TURN = 24


@dataclasses.dataclass
class Verdict:
    """The outcome of a seed: public names covered, known differences, and a failure if any."""

    covered: Counter[str]
    known: list[str] = dataclasses.field(default_factory=list)
    # Failures of one cluster most likely have one cause.
    cluster: tuple[str, str] | None = None
    # Shrinks the case; returns the cluster, which is more exact then, and the text.
    report: Callable[[], tuple[tuple[str, str], str]] | None = None


def check(seed: int) -> Verdict:
    """Run the case of a seed in both libraries."""
    turn = seed % _TURN
    if turn == 0:
        return _check_case(optimizer.draw_optimizer(seed), optimizer)
    if turn == 1:
        return _check_case(schedule.draw_schedule(seed), schedule)
    return _check_graph(seed)


def _check_case(case: Any, module: Any) -> Verdict:
    verdict = Verdict(Counter([case.covers()]))
    found = module.difference(case)
    if found is not None:
        verdict.cluster = (found.split()[0], case.covers())

        def report() -> tuple[tuple[str, str], str]:
            small = module.shrunk(case)
            text = f"{small.covers()}: {module.difference(small)}\n{module.program(small)}"
            return (found.split()[0], case.covers()), text

        verdict.report = report
    return verdict


def _check_graph(seed: int) -> Verdict:
    graph, torch = generate(seed)
    verdict = Verdict(Counter(name for op in graph.ops() for name in OPS[op].covers))
    for difference in compared(graph, torch):
        known = explained(difference, graph)
        if known is not None:
            verdict.known.append(known.name)
            # Results of a known difference cannot be distinguished from a new one.
            break
        verdict.cluster = (difference.kind, difference.op)
        verdict.report = lambda: report_of(graph, verdict.cluster)
        break
    return verdict


def report_of(graph: Graph, cluster: tuple[str, str] | None) -> tuple[tuple[str, str], str]:
    """Return the cluster, the difference and the program of the smallest graph that fails alike."""

    def fails(smaller: Graph) -> bool:
        found = compared(smaller)
        if not found or explained(found[0], smaller) is not None:
            return False
        return (found[0].kind, found[0].op) == cluster

    small = shrink(graph, fails)
    found = compared(small)
    if not found:
        return ("flaky", str(cluster)), f"does not repeat\n\n{show.program(small)}"
    name = found[0].op if found[0].op != "backward" else "+".join(sorted(set(small.ops())))
    return (found[0].kind, name), f"{found[0]}\n\n{show.program(small)}"
