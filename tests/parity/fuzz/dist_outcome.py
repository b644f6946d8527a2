"""The outcome of a program: forward values, gradients by worker, leaves afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.parity.fuzz.dist_graph import Program

ROUNDINGS = 8
"""How many rounding errors of the largest element gradients may differ by if sums may be in
another order."""


@dataclasses.dataclass
class GraphOutcome:
    """The outcome of one graph in one round; arrays by number of value or leaf."""

    values: dict[int, Any]
    grads: dict[int, dict[int, Any]]
    """Of each worker."""
    strange: dict[int, int] = dataclasses.field(default_factory=dict)
    """Of each worker: how many gradients are of no leaf of the program."""


@dataclasses.dataclass
class Outcome:
    """The outcomes of all graphs by round, and the leaves at the end."""

    rounds: list[list[GraphOutcome]]
    leaves: dict[int, Any]


def differences(program: Program, found: Outcome, wanted: Outcome) -> list[str]:
    """Return in words the differences between an outcome over workers and the local one.

    Forward values are equal bit for bit. So are gradients, unless calls overlap: a worker then adds
    what two of them gave to one leaf in the order in which they came.
    """
    exact = not program.overlaps
    texts = []
    for number, (own, other) in enumerate(zip(found.rounds, wanted.rounds, strict=True)):
        # Later rounds compute with leaves that the optimizer stepped, rounding errors and all.
        same = exact or number == 0 or not program.optimizer
        for place, (graph, local) in enumerate(zip(own, other, strict=True)):
            where = f"round {number}, graph {place}"
            texts += _of(f"{where}: value v", graph.values, local.values, same)
            texts += [
                f"{where}: {count} gradients on worker{worker} are of no leaf"
                for worker, count in graph.strange.items()
                if count
            ]
            for worker, grads in graph.grads.items():
                label = f"{where}: on worker{worker}, gradient of v"
                known = local.grads[worker]
                if any(stage.mode == "fast" for stage in program.graphs[place].stages):
                    # A fast pass gives zeros to what it does not reach.
                    grads = {k: g for k, g in grads.items() if k in known or g.any()}
                texts += _of(label, grads, known, exact)
    texts += _of("after it: leaf v", found.leaves, wanted.leaves, exact or not program.optimizer)
    return texts


def _of(label: str, found: Mapping[int, Any], wanted: Mapping[int, Any], exact: bool) -> list[str]:
    texts = [f"{label}{key} is missing" for key in sorted(wanted.keys() - found.keys())]
    texts += [f"{label}{key} should not be there" for key in sorted(found.keys() - wanted.keys())]
    for key in sorted(found.keys() & wanted.keys()):
        text = _of_array(found[key], wanted[key], exact)
        if text:
            texts.append(f"{label}{key} {text}")
    return texts


def _of_array(found: Any, wanted: Any, exact: bool) -> str:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"is {found.dtype} {found.shape}, not {wanted.dtype} {wanted.shape}"
    if np.array_equal(found, wanted, equal_nan=True):
        return ""
    worst = np.abs(found - wanted).max()
    largest = np.abs(wanted).max()
    if not exact and worst <= ROUNDINGS * np.finfo(wanted.dtype).eps * largest:
        return ""
    return f"differs by {worst:.3g} of {largest:.3g}"
