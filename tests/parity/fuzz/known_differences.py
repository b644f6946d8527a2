"""The differences from torch that are meant, one row each; docs/engine.md lists the same names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.parity.fuzz.compare import Difference, compared
from tests.parity.fuzz.execute import execute
from tests.parity.fuzz.graph import Graph, Leaf, Node, Ref, refs, replaced
from tests.parity.fuzz.library import OURS, TORCH
from tests.parity.fuzz.template import OPS


@dataclasses.dataclass(frozen=True)
class Known:
    """A difference that is meant: its name in the docs, why, and which differences it explains."""

    name: str
    reason: str
    fits: Callable[[Difference, Graph], bool]


def _changes(graph: Graph) -> bool:
    return any(OPS[name].inplace for name in graph.ops())


def _is(kind: str, *ops: str) -> Callable[[Difference, Graph], bool]:
    return lambda d, g: d.kind == kind and (not ops or d.op in ops)


_REFUSED = (
    "not implemented for",
    "does not support bool input",
    "only support floating point",
    "Expected a floating point",
    "bool tensor is not supported",
    "(batch mode) tensor with optional 0 dim",
    "non-zero size for non-batch dimensions",
    "step must be nonzero",
    "At least one of 'min' or 'max'",
    "Boolean inputs not supported",
    "Integers to negative integer powers",
    "Index put requires the source and destination dtypes match",
    "Only zero batch or zero channel inputs are supported",
    "is not implemented",
    "grad_input must be contiguous",
    "too many indices for tensor of dimension 0",
    "matrix_norm: dim must be a 2-tuple",
    "argument to `grad()` cannot be empty",
    "base or another view of its base has been modified inplace",
    "Got unsupported ScalarType",
    "Can't call numpy() on Tensor that requires grad",
    "a view and is being modified inplace",
    "created in no_grad mode and is being modified inplace",
    "can't assign a numpy",
)
# Ops that are one formula here and others in torch, or the products of other libraries.
_FORMULAS = {
    "batch-norm",
    "layer-norm",
    "f.group_norm",
    "n.BatchNorm1d",
    "n.BatchNorm2d",
    "n.LayerNorm",
    "n.GroupNorm",
    "f.factorization_machine(x)",
    "n.FactorizationMachine()(x)",
    "dot-interaction",
    "n.DotInteraction",
    "cross-layer",
    "embedding-bag",
    "n.EmbeddingBag",
    "conv1d",
    "conv2d",
    "n.Conv1d",
    "n.Conv2d",
    "n.MultiheadAttention",
    "linear",
    "linear-relu",
    "n.Linear",
    "n.Sequential",
    "n.MLP",
    "matmul",
    "x.matmul",
    "t.matmul",
    "x.mm",
    "t.mm",
    "x.bmm",
    "t.bmm",
    "x.dot",
    "matmul-square",
    "t.abs",
    "x.abs",
    "f.gelu",
    "n.GELU",
    "n.GELU-how",
    "gelu-tanh",
    "f.l1_loss",
    "n.L1Loss",
    "f.bce",
    "n.BCE",
    "f.cross_entropy",
    "f.cross_entropy-probabilities",
    "n.CrossEntropy",
    "t.prod",
    "x.prod",
    "t.prod-dim",
    "x.prod-dim",
    "t.var",
    "x.var",
    "t.std",
    "x.std",
    "t.var-dims",
    "x.var-dims",
    "t.std-dims",
    "x.std-dims",
    "pow",
    "x.pow",
    "t.pow",
    "rpow",
    "div",
    "rdiv",
    "x.div",
    "itruediv",
    "x.div_",
    "x.reciprocal",
    "x.norm-order",
    "t.norm-order",
}
_PRODUCTS = {
    *("matmul", "x.matmul", "t.matmul", "x.mm", "t.mm", "x.bmm", "t.bmm", "x.dot"),
    *("matmul-square", "linear", "n.Linear", "einsum"),
}
_HALVES = ("float16", "bfloat16")
_OVERWRITES = {"x.fill_", "x.zero_", "x.copy_", "setitem"}


def _no_grad_view(d: Difference, graph: Graph) -> bool:
    if d.kind != "flag" or not d.torch.endswith("True"):
        return False
    item = graph.items[int(d.where.lstrip("x").split("[")[0])]
    return getattr(item, "no_grad", False)


def _accepts_more(d: Difference, graph: Graph) -> bool:
    refused = any(text in d.torch for text in _REFUSED)
    return refused and d.kind in ("raise", "backward") and "Error: " not in d.ours[:40]


def _overwritten(d: Difference, graph: Graph) -> bool:
    flag = d.kind == "flag" and d.torch.endswith("True")
    lost = flag or (d.kind == "grad" and d.ours == "None")
    return lost and bool(_OVERWRITES & set(graph.ops()))


def _inplace_view(d: Difference, graph: Graph) -> bool:
    return d.kind in ("raise", "backward") and d.ours.startswith("InplaceError") and _changes(graph)


def _saved(d: Difference, graph: Graph) -> bool:
    text = "modified by an inplace operation"
    return d.kind == "backward" and d.ours == "None" and text in d.torch and _changes(graph)


def _old_view(d: Difference, graph: Graph) -> bool:
    return d.kind == "flag" and d.torch.endswith("True") and _changes(graph)


def _expanded(d: Difference, graph: Graph) -> bool:
    if not any("expand" in name for name in graph.ops()):
        return False
    if d.kind == "flag" and "contiguous" in d.op:
        # A copy is contiguous, so that `contiguous` returns the tensor itself.
        return True
    if d.kind == "raise" and "view of a leaf Variable" in d.torch:
        return _changes(graph)
    return _is_aliasing(d, graph, ("expand",))


def _is_aliasing(d: Difference, graph: Graph, ops: tuple[str, ...]) -> bool:
    """Return whether two runs agree if both copy the results of some ops."""
    if d.kind not in ("value", "grad", "flag") or not _changes(graph):
        return False
    copies, originals = _with_copies(graph, ops)
    return not any(
        found.kind == d.kind and found.where.split("[")[0] not in originals
        for found in compared(copies)
    )


def _with_copies(graph: Graph, ops: tuple[str, ...]) -> tuple[Graph, set[str]]:
    """Return the graph with a copy of every result of some ops, and where the results are."""
    items: list[Leaf | Node] = []
    slots: dict[int, int] = {}
    originals = set()

    def moved(value: Any) -> Any:
        return Ref(slots[value.slot], value.part) if isinstance(value, Ref) else value

    for slot, item in enumerate(graph.items):
        if isinstance(item, Node):
            item = Node(
                item.op, {k: replaced(v, moved) for k, v in item.args.items()}, item.no_grad
            )
        items.append(item)
        if isinstance(item, Node) and any(word in item.op for word in ops):
            originals.add(f"x{len(items) - 1}")
            items.append(Node("x.clone", {"x": Ref(len(items) - 1)}, item.no_grad))
        slots[slot] = len(items) - 1
    roots = [Ref(slots[r.slot], r.part) for r in graph.roots]
    return Graph(items, roots, graph.gradient_seed, graph.mode), originals


def _overlap(d: Difference, graph: Graph) -> bool:
    if d.kind == "raise":
        return "refer" in d.torch and "single memory location" in d.torch
    return d.kind == "value" and any(map(_reads_itself, [graph] * len(graph.items), graph.items))


def _reads_itself(graph: Graph, item: Leaf | Node) -> bool:
    if isinstance(item, Leaf) or not OPS[item.op].inplace:
        return False
    used = [_base(graph, ref) for ref in refs(list(item.args.values()))]
    return len(used) > len(set(used))


def _base(graph: Graph, ref: Ref) -> int:
    """Return the slot of the leaf that a tensor could be a view of: the first operand's."""
    item = graph.items[ref.slot]
    while isinstance(item, Node) and (used := list(refs(list(item.args.values())))):
        ref = used[0] if not isinstance(item.args.get("x"), Ref) else item.args["x"]
        item = graph.items[ref.slot]
    return ref.slot


def _view_or_copy(d: Difference, graph: Graph) -> bool:
    return _is_aliasing(d, graph, ("reshape", "flatten", "contiguous", "view", "einsum"))


_STEPS = {
    *("logical", "bool", "all", "any", "eq", "ne", "lt", "le", "gt", "ge"),
    *("sort", "argsort", "topk", "max", "min", "argmax", "argmin", "mask", "masked"),
    *("remainder", "floor", "mod", "floordiv", "log", "log1p", "sqrt", "rsqrt", "reciprocal"),
}


def _step(d: Difference, graph: Graph) -> bool:
    last = [name.split(".")[-1] for name in graph.ops()]
    has_step = any(set(re.split("[-_]", name)) & _STEPS for name in last)
    # The slope of a ReLU is a step.
    has_step = has_step or any(
        word in n for n in last for word in ("relu", "ReLU", "Sequential", "MLP")
    )
    halves = [i for i in graph.items if isinstance(i, Leaf) and i.values.dtype.name in _HALVES]
    is_coarse = bool(halves) or any("orm" in name for name in graph.ops()) or _has_dust(graph)
    return d.kind in ("value", "grad", "shape") and has_step and is_coarse


_DUST = {"float64": 1e-13, "float32": 1e-6}


def _has_dust(graph: Graph) -> bool:
    """Return whether terms cancel up to rounding."""
    for library in (TORCH, OURS):
        run = execute(graph, library)
        for tensor in (t for value in run.values if isinstance(value, list) for t in value):
            dust = _DUST.get(library.dtype_name(tensor), 0.0)
            size = np.abs(library.array(tensor))
            if dust and ((size > 0) & (size < dust)).any():
                return True
    return False


def _root(d: Difference, graph: Graph) -> bool:
    powers = _of(graph, "pow", "x.pow", "t.pow")
    return d.kind in ("value", "grad") and any(n.args["y"] in (0.5, -0.5) for n in powers)


def _beyond(d: Difference, graph: Graph) -> bool:
    """Return whether a number lies beyond the dtype: torch wraps it around before it compares."""
    if d.kind == "raise" and "out of bounds for uint8" in d.ours:
        return True
    compares = d.kind == "value" and d.op.split(".")[-1] in (
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "clamp",
    )
    return compares and any(isinstance(i, Leaf) and i.values.dtype == "uint8" for i in graph.items)


def _signed_zero(d: Difference, graph: Graph) -> bool:
    infinite = d.kind == "value" and "inf" in d.ours and "inf" in d.torch
    return infinite and any("relu" in name.lower() or name in _PRODUCTS for name in graph.ops())


def _empty_assignment(d: Difference, graph: Graph) -> bool:
    return d.kind == "flag" and d.ours.endswith("True") and "setitem" in graph.ops()


def _non_finite(d: Difference, graph: Graph) -> bool:
    if d.kind == "value":
        # What comes first is where it begins; a leaf is where running statistics are kept.
        is_formula = d.op in _FORMULAS or (d.op == "leaf" and "batch-norm" in graph.ops())
        return is_formula and any(text in d.ours + d.torch for text in ("nan", "inf"))
    if d.kind != "grad" or not _FORMULAS & set(graph.ops()):
        return False
    # Of finite numbers only a gradient that is infinite in torch, too, may be NaN.
    run = execute(graph, TORCH)
    tensors = [t for value in run.values if isinstance(value, list) for t in value]
    tensors += [g for g in run.grads.values() if g is not None]
    return any(t.is_floating_point() and not np.isfinite(TORCH.array(t)).all() for t in tensors)


def _uint8(d: Difference, graph: Graph) -> bool:
    names = [name.split(".")[-1][:3] for name in graph.ops()]
    is_changed = d.kind == "raise" and "written to a tensor of bool" in d.ours
    if is_changed and {"any", "all"} & set(names):
        return True
    return d.kind == "dtype" and d.torch == "uint8" and d.op.split(".")[-1][:3] in ("any", "all")


def _of(graph: Graph, *names: str) -> list[Node]:
    return [i for i in graph.items if isinstance(i, Node) and i.op in names]


def _norm_of_order_0(d: Difference, graph: Graph) -> bool:
    orders = [node.args.get("p") for node in _of(graph, "x.norm-order", "t.norm-order")]
    return d.kind == "grad" and d.torch == "None" and 0 in orders


def _too_few(d: Difference, graph: Graph) -> bool:
    names = ("x.var-dims", "x.std-dims", "t.var-dims", "t.std-dims")
    return d.kind == "grad" and any(node.args["correction"] == 2 for node in _of(graph, *names))


def _empty_dtypes(d: Difference, graph: Graph) -> bool:
    refused = "needs a float tensor" in d.ours or "differ; cast one" in d.ours
    is_empty = any(isinstance(item, Leaf) and not item.values.size for item in graph.items)
    return d.kind == "raise" and refused and (is_empty or "tensor([]" in d.torch)


def _no_classes(d: Difference, graph: Graph) -> bool:
    return d.kind == "raise" and "has no classes" in d.ours


def _empty_groups(d: Difference, graph: Graph) -> bool:
    is_nan = d.kind == "grad" and "nan" in d.torch
    return is_nan and bool(_of(graph, "n.GroupNorm", "f.group_norm")) and "nan" not in d.ours


def _softplus(d: Difference, graph: Graph) -> bool:
    has = any("softplus" in name.lower() for name in graph.ops())
    tensors = [
        t for value in execute(graph, TORCH).values if isinstance(value, list) for t in value
    ]
    large = has and any((TORCH.array(t) > 20).any() for t in tensors if t.is_floating_point())
    return d.kind in ("value", "grad") and large


KNOWN: list[Known] = [
    Known(
        "softplus-threshold", "softplus is exact everywhere, torch returns x above 20", _softplus
    ),
    Known(
        "view-or-copy",
        "reshape returns a view where memory allows, which lies otherwise in torch; einsum a copy",
        _view_or_copy,
    ),
    Known(
        "root", "torch takes roots for powers of 0.5 and -0.5: other results for -0 and -inf", _root
    ),
    Known(
        "beyond-the-dtype",
        "numbers beyond the dtype compare exactly, torch wraps them around",
        _beyond,
    ),
    Known(
        "step",
        "a rounding error of a norm, of half precision or about 0 decides at a step or a pole",
        _step,
    ),
    Known(
        "signed-zero",
        "relu of -0 is 0, torch keeps the sign; a sum of products that are 0 has either sign",
        _signed_zero,
    ),
    Known("norm-0", "the gradient of norm of order 0 is 0, torch has none", _norm_of_order_0),
    Known(
        "too-few-samples",
        "variances of fewer samples than the correction: torch has two rules",
        _too_few,
    ),
    Known(
        "empty-dtypes",
        "dtypes that an op refuses are taken by torch if there are no elements",
        _empty_dtypes,
    ),
    Known("no-classes", "losses of no classes are refused, torch returns 0", _no_classes),
    Known(
        "empty-groups",
        "group norm of no elements has the gradient 0, torch divides 0 by 0",
        _empty_groups,
    ),
    Known("empty-assignment", "an assignment of no elements is recorded", _empty_assignment),
    Known(
        "non-finite",
        "a formula written otherwise gives NaN where torch gives infinity",
        _non_finite,
    ),
    Known("uint8-truth", "any and all of uint8 give bool, torch gives uint8", _uint8),
    Known(
        "no-grad-view",
        "torch lets a view taken under no_grad say what its base says",
        _no_grad_view,
    ),
    Known(
        "overwritten",
        "a tensor overwritten by constants is a constant, torch keeps a zero gradient",
        _overwritten,
    ),
    Known(
        "inplace-view",
        "views are not rebuilt after a recorded change: InplaceError says so",
        _inplace_view,
    ),
    Known("old-view", "a view older than a recorded change keeps its own history", _old_view),
    Known(
        "saved-values", "the two save other values for backward, so other changes break it", _saved
    ),
    Known(
        "expand-copies", "expand copies, so changes do not reach what it was made from", _expanded
    ),
    Known("overlapping-memory", "writing to elements that share memory is not refused", _overlap),
    Known(
        "accepts-more",
        "dtypes and empty sizes that torch has no kernel for give a result",
        _accepts_more,
    ),
]


def explained(difference: Difference, graph: Graph) -> Known | None:
    """Return the row that explains a difference, None if there is none."""
    return next((known for known in KNOWN if known.fits(difference, graph)), None)
