"""The dense part of a model as arrays: what a trainer hands to another, and what is saved."""

import io
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
        steps: Steps that are in the arrays.
        arrays: Parameters, buffers and optimizer state, copies.
        pending: Averaged gradients of the next step by parameter, if it is not known whether that
            counts; copies.
    """

    origin: int
    steps: int
    arrays: Mapping[str, Array]
    pending: Mapping[str, Array] | None = None

    @property
    def most_steps(self) -> int:
        """Steps that the arrays can be brought to."""
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


def load_dense(model: Module, optimizer: Optimizer, arrays: Mapping[str, Array]) -> None:
    """Set what `dense_arrays` returned.

    Raises:
        KeyError: They are of another model; nothing is changed then.
        ValueError: As for KeyError.
    """
    own = {name: tensor.data.shape for name, tensor in model.state_dict().items()}
    given = {n.removeprefix(_MODEL): a for n, a in arrays.items() if n.startswith(_MODEL)}
    if own != {name: array.shape for name, array in given.items()}:
        wrong = sorted({*own.items()} ^ {(n, a.shape) for n, a in given.items()})
        raise ValueError(f"the dense arrays are of another model: {', '.join(map(str, wrong))}")
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
