"""Runs a graph in one library, item by item, and keeps the results or error of each item."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.parity.fuzz.graph import Graph, Leaf, Node, Ref, replaced
from tests.parity.fuzz.library import EPS, FLOATS, TORCH, Ours, Torch, numpy_dtype
from tests.parity.fuzz.template import OPS


class Raised:
    """The error of a call, in place of its results."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        lines = str(self.error).splitlines() or [""]
        return f"{type(self.error).__name__}: {lines[0]}"


class Plain:
    """A result of a call that is not a tensor."""

    def __init__(self, value: Any) -> None:
        self.value = value


_CASTS = ("x.float", "x.half", "x.bfloat16")


class Machine:
    """Execute items in a library.

    Args:
        library: Which one.
        as_float64: Run every float leaf and named dtype as float64, to be the referee.
        noise: Multiply each new float result by 1 ± a rounding error, drawn from this generator.
    """

    def __init__(self, library: Ours | Torch, as_float64: bool = False, noise: Any = None) -> None:
        self.library, self.as_float64, self.noise = library, as_float64, noise
        self.values: list[Any] = []
        self.modules: list[tuple[int, Any]] = []
        self.grads: dict[str, Any] = {}
        self.backward_error: Raised | None = None

    def tensor(self, ref: Ref) -> Any:
        """Return the tensor that a Ref names."""
        return self.values[ref.slot][ref.part]

    def add(self, item: Leaf | Node) -> Any:
        """Execute an item and return its results: tensors in a list, Plain or Raised."""
        if isinstance(item, Leaf):
            result: Any = [self.library.leaf(self._changed(item))]
        else:
            result = self._call(item)
        self.values.append(result)
        return result

    def _changed(self, leaf: Leaf) -> Leaf:
        values, name = leaf.values, leaf.values.dtype.name
        if name not in FLOATS or (self.noise is None and not self.as_float64):
            return leaf
        if self.as_float64:
            values = values.astype(np.float64)
        else:
            shaken = values.astype(np.float64) * self._factor(name, values.shape)
            values = np.asarray(shaken).astype(values.dtype)
        # Noise makes elements that share memory differ.
        layout = ("plain",) if leaf.layout[0] == "broadcast" else leaf.layout
        return Leaf(values, layout, leaf.requires_grad)

    def _factor(self, name: str, shape: tuple[int, ...]) -> Any:
        return 1 + EPS[name] * self.noise.choice([-1.0, 0.0, 1.0], size=shape)

    def _call(self, node: Node) -> Any:
        op = OPS[node.op]
        if self.as_float64 and node.op in _CASTS:
            # The referee stays in float64; torch's norms crash where dtypes are mixed.
            op = OPS["x.double"]
        call = op.peer_call if self.library is TORCH else op.call
        library = self.library
        try:
            args = {k: replaced(v, self._resolve) for k, v in node.args.items()}
            with library.grad_mode(node.no_grad):
                out = call(library.t, library.f, library.n, self.apply, **args)
        except Exception as error:
            return Raised(error)
        result = self._kept(out)
        if not op.inplace and isinstance(result, list):
            self._disturb(result)
        return result

    def _kept(self, out: Any) -> Any:
        if isinstance(out, self.library.tensor_class):
            return [out]
        if (
            isinstance(out, (tuple, list))
            and out
            and all(isinstance(o, self.library.tensor_class) for o in out)
        ):
            return list(out)
        return Plain(out)

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self.tensor(value)
        name = value.name
        return self.library.dtype("float64" if self.as_float64 and name in FLOATS else name)

    def apply(self, module: Any, state: int, dtype: Any, training: bool, *inputs: Any) -> Any:
        """Fill a layer with values of a seed, call it, and keep it for its gradients."""
        name = "float64" if self.as_float64 else dtype
        library = self.library
        module = library.cast(module, name)
        library.fill(module, lambda place, key, shape: drawn_state(state, place, key, shape, name))
        module.train(training)
        self.modules.append((len(self.values), module))
        return module(*inputs)

    def _disturb(self, tensors: list[Any]) -> None:
        if self.noise is None:
            return
        for place, tensor in enumerate(tensors):
            name = self.library.dtype_name(tensor)
            if name in EPS and tensor._base is None and not self._seen(tensor):
                factor = TORCH.constant(np.asarray(self._factor(name, tuple(tensor.shape))))
                if tensor.requires_grad and not tensor.is_leaf and self.noise.random() < 0.5:
                    # Recorded: the derivative, 1 - y² of a tanh for instance, has its own rounding.
                    tensors[place] = tensor * factor.to(tensor.dtype)
                else:
                    tensor.data.copy_(tensor.data.double() * factor)

    def _seen(self, tensor: Any) -> bool:
        return any(isinstance(v, list) and any(t is tensor for t in v) for v in self.values)

    def backward(self, graph: Graph) -> None:
        """Run the backward pass of a graph whose items have run, and keep the gradients."""
        library = self.library
        roots = [r for r in graph.roots if isinstance(self.values[r.slot], list)]
        outs = [self.tensor(r) for r in roots]
        given = [self.gradient(graph.gradient_seed, k, out) for k, out in enumerate(outs)]
        leaves = self._leaves(graph)
        try:
            if graph.mode == "grad":
                wanted = [t for _, t in leaves]
                extra = {"allow_unused": True} if library is TORCH else {}
                found = library.t.autograd.grad(outs, wanted, given, **extra)
                self.grads = {name: g for (name, _), g in zip(leaves, found, strict=True)}
                return
            for k, (out, gradient) in enumerate(zip(outs, given, strict=True)):
                out.backward(gradient, retain_graph=k + 1 < len(outs))
        except Exception as error:
            self.backward_error = Raised(error)
            return
        self.grads = {name: t.grad for name, t in leaves}

    def gradient(self, seed: int, place: int, out: Any) -> Any:
        """Return the gradient that a root begins with."""
        name = self.library.dtype_name(out)
        rng = np.random.default_rng([seed, place])
        drawn = rng.integers(-4, 5, size=tuple(out.shape)) / 4
        return self.library.constant(np.asarray(drawn).astype(numpy_dtype(name)))

    def _leaves(self, graph: Graph) -> list[tuple[str, Any]]:
        leaves = [
            (f"x{slot}", self.values[slot][0])
            for slot, item in enumerate(graph.items)
            if isinstance(item, Leaf) and item.requires_grad
        ]
        for slot, module in self.modules:
            leaves += [(f"x{slot}.{place}", p) for place, p in enumerate(module.parameters())]
        return leaves


def drawn_state(seed: int, place: int, key: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Return a layer's values, the same for both libraries; variances are positive."""
    if key.endswith("num_batches_tracked"):
        return None
    rng = np.random.default_rng([seed, place])
    values = rng.integers(-6, 7, size=shape) / 4
    values = np.abs(values) + 0.5 if key.endswith("var") else values
    return np.asarray(values, dtype=np.float32 if dtype in ("float16", "bfloat16") else dtype)


def execute(graph: Graph, library: Ours | Torch, **options: Any) -> Machine:
    """Run a whole graph, forward and backward."""
    machine = Machine(library, **options)
    for item in graph.items:
        machine.add(item)
    if graph.roots:
        machine.backward(graph)
    return machine
