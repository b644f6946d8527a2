"""The dense part of a model as arrays: to broadcast, to save, and its clipped gradients."""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from gradmesh.engine.nn import Module
from gradmesh.engine.optim import Optimizer
from gradmesh.protos.frame import Array
from gradmesh.sdk.checkpoint.tensors import parse_tensors, write_tensors

_MODEL, _OPTIMIZER, _STEP = "model.", "optimizer.", "step"


@final
@dataclass(frozen=True, slots=True, eq=False)
class DenseState:
    """A trainer's dense part at a step of a run.

    Args:
        origin: Generation in which the run began.
        steps: Steps applied to the arrays.
        arrays: Parameters, buffers and optimizer state, copies.
        pending: Averaged gradients of the next step by parameter, if it is unknown whether that
            step was committed; copies.
        batches: Batches of all trainers before these steps.
        step_batches: Batches of the next step, if it is pending.
    """

    origin: int
    steps: int
    arrays: Mapping[str, Array]
    pending: Mapping[str, Array] | None = None
    batches: int = 0
    step_batches: int = 0

    @property
    def most_steps(self) -> int:
        """Steps that the arrays can reach, with the pending gradients."""
        return self.steps + (self.pending is not None)


def dense_arrays(model: Module, optimizer: Optimizer) -> dict[str, Array]:
    """Return copies of parameters, buffers and optimizer state, by torch's names."""
    found = {_MODEL + name: np.array(t.data) for name, t in model.state_dict().items()}
    names = {id(p): name for name, p in model.named_parameters()}
    for param, kept in optimizer.state.items():
        name = f"{_OPTIMIZER}{names[id(param)]}."
        found[name + _STEP] = np.array([kept[_STEP]], np.int64)
        found |= {f"{name}slots.{slot}": np.array(a) for slot, a in kept["slots"].items()}
    return found


def check_dense(model: Module, arrays: Mapping[str, Array]) -> None:
    """Raise if arrays are not of this model.

    Raises:
        ValueError: Names or shapes differ, or a count of steps is not one whole number.
    """
    for name, array in arrays.items():
        is_count = name.startswith(_OPTIMIZER) and name.endswith("." + _STEP)
        if is_count and (array.shape != (1,) or array.dtype.kind != "i"):
            raise ValueError(f"{name} is {array.dtype} {array.shape}, expected int64 (1,)")
    own = {_MODEL + name: tensor.data.shape for name, tensor in model.state_dict().items()}
    given = {name: array.shape for name, array in arrays.items() if name.startswith(_MODEL)}
    wrong = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
    if wrong:
        raise ValueError(
            f"it is of another model: {', '.join(f'{n} {given.get(n)}' for n in wrong)} there, "
            f"{', '.join(f'{n} {own.get(n)}' for n in wrong)} here"
        )


def load_dense(model: Module, optimizer: Optimizer, arrays: Mapping[str, Array]) -> None:
    """Set what `dense_arrays` returned.

    Raises:
        ValueError: They are of another model; nothing is changed then.
    """
    check_dense(model, arrays)
    given = {n.removeprefix(_MODEL): a for n, a in arrays.items() if n.startswith(_MODEL)}
    state: dict[int, dict[str, Any]] = {}
    params = [p for group in optimizer.param_groups for p in group["params"]]
    names = {id(p): name for name, p in model.named_parameters()}
    for number, param in enumerate(params):
        prefix = f"{_OPTIMIZER}{names[id(param)]}."
        if prefix + _STEP in arrays:
            slots = f"{prefix}slots."
            state[number] = {
                _STEP: int(arrays[prefix + _STEP][0]),
                "slots": {
                    n.removeprefix(slots): a for n, a in arrays.items() if n.startswith(slots)
                },
            }
    model.load_state_dict(given)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def pack(arrays: Mapping[str, Array]) -> Array:
    """Return arrays as bytes, uint8 [n]: a safetensors file."""
    file = io.BytesIO()
    write_tensors(file, arrays)
    return np.frombuffer(file.getbuffer(), np.uint8)


def unpack(data: Array) -> dict[str, Array]:
    """Return the arrays that `pack` was given."""
    return parse_tensors(data.tobytes())


def clipped(gradients: Mapping[Any, Any], max_norm: float) -> dict[Any, Any]:
    """Return gradients scaled to a total norm of at most max_norm; the arguments do not change.

    Computed as torch's clip_grad_norm_ does, in float64 and in the order of the parameters, so that
    ranks with equal gradients get equal results.

    Args:
        gradients: Arrays by parameter.
        max_norm: Largest norm; 0 for no limit.
    """
    if not max_norm:
        return dict(gradients)
    total = math.sqrt(sum(float(np.vdot(g, g)) for g in gradients.values()))
    if total + 1e-6 <= max_norm:
        return dict(gradients)
    factor = max_norm / (total + 1e-6)
    return {leaf: grad * grad.dtype.type(factor) for leaf, grad in gradients.items()}
