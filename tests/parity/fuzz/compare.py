"""Compares two runs of a graph: errors, dtypes, shapes, values and gradients.

A value is near if it differs by at most `FACTOR` rounding errors of the graph's coarsest dtype,
relative to the element and to the largest element of the tensor. What is not near still counts as
equal where the computation itself is that inexact: ours may be as far from the float64 result as
4 times torch's own error, or differ by 4 times what a rounding error at every op changes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tests.parity.fuzz.execute import Machine, Plain, Raised, execute
from tests.parity.fuzz.graph import Graph, Node
from tests.parity.fuzz.library import EPS, OURS, TORCH

FACTOR = {"float64": 64, "float32": 64, "float16": 8, "bfloat16": 8}
_WORSE = 4.0
_SHAKES = 6
# In rounding errors, what is left of terms about 1 that cancel.
_TINY = 4.0


@dataclasses.dataclass(frozen=True)
class Difference:
    """What differs: `raise`, `dtype`, `shape`, `flag`, `value`, `backward`, `grad` or `none`."""

    kind: str
    where: str
    op: str
    ours: str
    torch: str

    def __str__(self) -> str:
        return (
            f"{self.kind} of {self.where} ({self.op})\n  ours:  {self.ours}\n  torch: {self.torch}"
        )


def differences(graph: Graph, ours: Machine, torch: Machine) -> list[Difference]:
    """Return the differences between the two runs, in order of execution."""
    referee = _Referee(graph, torch)
    found: list[Difference] = []
    for slot, item in enumerate(graph.items):
        mine, theirs = ours.values[slot], torch.values[slot]
        if isinstance(mine, Raised) != isinstance(theirs, Raised):
            # First of all: a call that raised has changed nothing, and gives no value to compare.
            op = item.op if isinstance(item, Node) else "leaf"
            return [Difference("raise", f"x{slot}", op, _shown(mine), _shown(theirs))]
    for slot, item in enumerate(graph.items):
        mine, theirs = ours.values[slot], torch.values[slot]
        name = item.op if isinstance(item, Node) else "leaf"
        found += _of_values(f"x{slot}", name, mine, theirs, referee, slot)
    if found:
        return found
    return _of_backward(graph, ours, torch, referee)


def _of_values(
    where: str, op: str, mine: Any, theirs: Any, referee: _Referee, slot: int
) -> list[Difference]:
    if isinstance(mine, Raised):
        return []
    if isinstance(mine, Plain) or isinstance(theirs, Plain):
        if (
            isinstance(mine, Plain)
            and isinstance(theirs, Plain)
            and _same(mine.value, theirs.value)
        ):
            return []
        return [Difference("value", where, op, _shown(mine), _shown(theirs))]
    if len(mine) != len(theirs):
        return [Difference("none", where, op, f"{len(mine)} tensors", f"{len(theirs)} tensors")]
    found = []
    for part, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        name = where if len(mine) == 1 else f"{where}[{part}]"
        found += _of_tensors(
            "value", name, op, a, b, lambda p=part: referee.values(slot, p), referee
        )
        if a.requires_grad != b.requires_grad:
            shown = f"requires_grad={a.requires_grad}", f"requires_grad={b.requires_grad}"
            found.append(Difference("flag", name, op, *shown))
    return found


def _of_tensors(
    kind: str, where: str, op: str, a: Any, b: Any, others: Any, referee: _Referee
) -> list[Difference]:
    if tuple(a.shape) != tuple(b.shape):
        return [Difference("shape", where, op, str(tuple(a.shape)), str(tuple(b.shape)))]
    if OURS.dtype_name(a) != TORCH.dtype_name(b):
        return [Difference("dtype", where, op, OURS.dtype_name(a), TORCH.dtype_name(b))]
    mine, theirs = OURS.array(a), TORCH.array(b)
    if near(mine, theirs, referee.rtol, referee.peak) or referee.accepts(mine, theirs, others()):
        return []
    return [Difference(kind, where, op, _text(mine), _text(theirs))]


def _of_backward(
    graph: Graph, ours: Machine, torch: Machine, referee: _Referee
) -> list[Difference]:
    mine, theirs = ours.backward_error, torch.backward_error
    if mine is not None or theirs is not None:
        if mine is not None and theirs is not None:
            return []
        return [Difference("backward", "roots", "backward", _shown(mine), _shown(theirs))]
    found = []
    for name in torch.grads:
        a, b = ours.grads.get(name), torch.grads[name]
        if a is None or b is None:
            if a is not b:
                found.append(Difference("grad", name, "backward", _shown(a), _shown(b)))
            continue
        found += _of_tensors(
            "grad", name, "backward", a, b, lambda n=name: referee.grads(n), referee
        )
    return found


def near(mine: Any, theirs: Any, rtol: float, least: float = 0.0) -> bool:
    """Return whether two arrays are equal but for rounding; NaN equals NaN, inf equals inf.

    Args:
        mine: Ours.
        theirs: Torch's.
        rtol: Error allowed, relative to the element and to the largest element.
        least: What the largest element counts for at least.
    """
    if mine.dtype.kind != "f":
        return bool(np.array_equal(mine, theirs))
    if np.array_equal(mine, theirs, equal_nan=True):
        return True
    finite = np.isfinite(theirs)
    if not np.array_equal(finite, np.isfinite(mine)):
        return False
    if not np.array_equal(mine[~finite], theirs[~finite], equal_nan=True):
        return False
    a, b = mine[finite], theirs[finite]
    peak = float(np.abs(b).max(initial=least))
    return bool((np.abs(a - b) <= rtol * (np.abs(b) + peak)).all())


class _Referee:
    """Decide whether a difference is rounding, by runs of torch in float64 and with noise."""

    def __init__(self, graph: Graph, torch: Machine) -> None:
        self._graph = graph
        self._runs: list[Machine] | None = None
        names = {
            TORCH.dtype_name(t)
            for value in torch.values
            if isinstance(value, list)
            for t in value
            if t.is_floating_point()
        }
        self.rtol = max((EPS[n] * FACTOR[n] for n in names), default=EPS["float64"] * 64)
        # Torch computes a half op in float32 and rounds once, ours rounds at every step of a
        # formula: there the error is relative to the inputs.
        # So it is where a mean is taken off, and next to nothing may be left.
        ops = set(graph.ops())
        has_norm = any("orm" in name for name in ops)
        has_tail = any("gelu" in name.lower() for name in graph.ops())
        is_relative = has_norm or has_tail or names & {"float16", "bfloat16"}
        self.peak = min(_peak(torch), 8.0) if is_relative else 0.0
        # A norm of equal elements divides what is left of them by the root of eps.
        norms = sum("orm" in name for name in graph.ops())
        factor = math.sqrt(1e5) ** min(norms, 2)
        self._noise = self.rtol * self.peak * factor if has_norm else _TINY * self.rtol
        rounding = max((EPS[n] for n in names), default=0.0)
        self._left_over = 4 * rounding * self.peak * factor if has_norm else 0.0
        if any("cross_entropy" in name or "CrossEntropy" in name for name in ops):
            # The gradient of a class that is nearly certain is the difference of numbers near 1.
            self._left_over = max(self._left_over, self.rtol)

    def _all(self) -> list[Machine]:
        if self._runs is None:
            self._runs = [execute(self._graph, TORCH, as_float64=True)]
            for shake in range(_SHAKES):
                rng = np.random.default_rng(shake)
                self._runs.append(execute(self._graph, TORCH, noise=rng))
        return self._runs

    def values(self, slot: int, part: int) -> list[Any]:
        """Return a tensor's values in the other runs; the float64 one is first, None if none."""
        found: list[Any] = []
        for run in self._all():
            value = run.values[slot]
            has = isinstance(value, list) and part < len(value)
            found.append(TORCH.array(value[part]) if has else None)
        return found

    def grads(self, name: str) -> list[Any]:
        """Return a gradient in the other runs."""
        found = [run.grads.get(name) for run in self._all()]
        return [None if g is None else TORCH.array(g) for g in found]

    def accepts(self, mine: Any, theirs: Any, others: list[Any]) -> bool:
        """Return whether the difference is within the rounding error of this computation."""
        if mine.dtype.kind == "f" and max(_size(mine), _size(theirs)) <= self._noise:
            return True
        if mine.dtype.kind == "f" and _size(mine - theirs) <= self._left_over:
            return True
        same = [o for o in others if o is not None and o.shape == theirs.shape]
        if len(same) < len(others):
            return True
        if mine.dtype.kind != "f":
            wrong = mine != theirs
            return bool(np.all([(o != theirs)[wrong] for o in same], axis=1).any()) and wrong.any()
        wild = any(not np.array_equal(np.isfinite(o), np.isfinite(theirs)) for o in same[1:])
        if wild:
            return True
        if not np.array_equal(np.isfinite(mine), np.isfinite(theirs)):
            return False
        finite = np.isfinite(theirs)
        if not np.array_equal(mine[~finite], theirs[~finite], equal_nan=True):
            return False
        truth, shaken = same[0], same[1:]
        error = _largest(mine - theirs, finite)
        spread = max(_largest(o - theirs, finite) for o in shaken)
        if error <= _WORSE * spread:
            return True
        return _largest(mine - truth, finite) <= _WORSE * _largest(theirs - truth, finite)


def _peak(run: Machine) -> float:
    tensors = [t for value in run.values if isinstance(value, list) for t in value]
    floats = [TORCH.array(t) for t in tensors if t.is_floating_point() and t.numel()]
    return max((_largest(a, np.isfinite(a)) for a in floats), default=0.0)


def _size(values: Any) -> float:
    return _largest(values, np.ones(values.shape, dtype=bool))


def _largest(values: Any, finite: Any) -> float:
    picked = np.abs(values[finite])
    found = float(picked.max(initial=0.0))
    return math.inf if math.isnan(found) else found


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, float) and isinstance(theirs, float):
        return (
            mine == theirs
            or (math.isnan(mine) and math.isnan(theirs))
            or math.isclose(mine, theirs, rel_tol=1e-2, abs_tol=1e-6)
        )
    if isinstance(mine, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    return type(mine) is type(theirs) and bool(mine == theirs)


def _shown(value: Any) -> str:
    if isinstance(value, Plain):
        return repr(value.value)
    if isinstance(value, list):
        return f"{len(value)} tensors" if len(value) > 1 else str(value[0])
    return str(value)


def _text(array: Any) -> str:
    shown = np.array2string(np.asarray(array), precision=8, threshold=24, separator=", ")
    return " ".join(shown.split())


def compared(graph: Graph, torch: Machine | None = None) -> list[Difference]:
    """Run a graph in both libraries, torch's run given or not; return the differences."""
    theirs = execute(graph, TORCH) if torch is None else torch
    return differences(graph, execute(graph, OURS), theirs)
