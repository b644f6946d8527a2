"""Optimizers: random options and groups, dense and sparse gradients, twenty steps in both."""

from __future__ import annotations

import dataclasses
import inspect
import random
from typing import Any

import numpy as np
import torch

import gradmesh as gm
from gradmesh.engine.autograd import RowGrad
from tests.parity.fuzz.compare import near
from tests.parity.fuzz.library import EPS, OURS, TORCH, numpy_dtype

STEPS = 20
_RATES = (0.1, 0.01, 0.5, 1e-3)
_DECAY = (0.0, 0.0, 0.01, 0.3)
_BETAS = ((0.9, 0.999), (0.8, 0.95), (0.0, 0.9), (0.9, 0.5))
_EPS = (1e-8, 1e-4, 1e-2)
_BOTH = (False, False, True)
# What may be drawn for each option, by optimizer; an option that ours does not have is left out.
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "SGD": {
        "momentum": (0.0, 0.9, 0.5),
        "dampening": (0.0, 0.0, 0.3),
        "weight_decay": _DECAY,
        "nesterov": _BOTH,
        "maximize": _BOTH,
    },
    "Adagrad": {
        "lr_decay": (0.0, 0.1),
        "weight_decay": _DECAY,
        "initial_accumulator_value": (0.0, 0.5),
        "eps": (1e-10, 1e-4),
        "maximize": _BOTH,
    },
    "RMSprop": {
        "alpha": (0.99, 0.5),
        "eps": _EPS,
        "weight_decay": _DECAY,
        "momentum": (0.0, 0.9),
        "centered": _BOTH,
        "maximize": _BOTH,
    },
    "Rprop": {
        "etas": ((0.5, 1.2), (0.3, 1.5)),
        "step_sizes": ((1e-6, 50.0), (1e-3, 0.2)),
        "maximize": _BOTH,
    },
    "Adadelta": {
        "rho": (0.9, 0.5),
        "eps": (1e-6, 1e-2),
        "weight_decay": _DECAY,
        "maximize": _BOTH,
    },
    "Adamax": {"betas": _BETAS, "eps": _EPS, "weight_decay": _DECAY, "maximize": _BOTH},
    "Adam": {
        "betas": _BETAS,
        "eps": _EPS,
        "weight_decay": _DECAY,
        "amsgrad": _BOTH,
        "maximize": _BOTH,
        "decoupled_weight_decay": _BOTH,
    },
    "AdamW": {
        "betas": _BETAS,
        "eps": _EPS,
        "weight_decay": _DECAY,
        "amsgrad": _BOTH,
        "maximize": _BOTH,
    },
    "NAdam": {
        "betas": _BETAS[:3],
        "eps": _EPS,
        "weight_decay": _DECAY,
        "momentum_decay": (0.004, 0.1),
        "decoupled_weight_decay": _BOTH,
        "maximize": _BOTH,
    },
    "RAdam": {
        "betas": _BETAS[:3],
        "eps": _EPS,
        "weight_decay": _DECAY,
        "decoupled_weight_decay": _BOTH,
        "maximize": _BOTH,
    },
}
# Torch's optimizers that take sparse gradients, by ours, and the options that both then have.
# SparseAdam adds eps before the correction of the bias, our rule after it, as Adam does.
SPARSE: dict[str, tuple[str, dict[str, tuple[Any, ...]]]] = {
    "SGD": ("SGD", {}),
    "Adagrad": ("Adagrad", {"eps": (1e-10, 1e-4)}),
    "Adam": ("SparseAdam", {"betas": _BETAS[:2], "eps": (1e-30,)}),
}


@dataclasses.dataclass(frozen=True)
class OptimizerCase:
    """One optimizer with its options, the shapes it trains, and the seed of the gradients."""

    name: str
    options: dict[str, Any]
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    second_rate: float | None
    sparse: bool
    seed: int
    steps: int = STEPS

    def covers(self) -> str:
        """Return the public name that the case covers."""
        return f"optim.{self.name}"


def draw_optimizer(seed: int) -> OptimizerCase:
    """Return the case of a seed."""
    rng = random.Random(seed)
    name = rng.choice([n for n in OPTIONS if hasattr(gm.optim, n)])
    sparse = name in SPARSE and rng.random() < 0.3
    known = inspect.signature(getattr(gm.optim, name)).parameters
    options: dict[str, Any] = {"lr": rng.choice(_RATES)}
    for option, choices in (SPARSE[name][1] if sparse else OPTIONS[name]).items():
        if option in known and (sparse or rng.random() < 0.6):
            options[option] = rng.choice(choices)
    if rng.random() < 0.03:
        options[rng.choice([k for k, v in options.items() if isinstance(v, float)])] = -1.0
    shapes = [(3, 2)] if sparse else [(2, 3), (), (0, 2), (4,)][: rng.randint(1, 4)]
    return OptimizerCase(
        name,
        options,
        rng.choices(("float32", "float64", "float16", "bfloat16"), (10, 8, 1, 1))[0],
        tuple(shapes),
        rng.choice(_RATES) if len(shapes) > 1 and rng.random() < 0.4 else None,
        sparse,
        seed,
    )


def _gradients(case: OptimizerCase) -> Any:
    """Yield the gradients of each step: None where there is none, ids with rows if sparse."""
    rng = np.random.default_rng(case.seed)
    for _ in range(case.steps):
        grads: list[Any] = []
        for shape in case.shapes:
            ids = rng.integers(0, shape[0], size=rng.integers(0, 4)) if case.sparse else None
            values = rng.normal(size=shape if ids is None else (len(ids), *shape[1:]))
            if rng.random() < 0.2:
                values = np.round(values)
            grads.append(None if rng.random() < 0.1 else (ids, np.asarray(values)))
        yield grads


def train(case: OptimizerCase, library: Any, dtype: str) -> list[Any]:
    """Return the parameters after the steps, in one library."""
    rng = np.random.default_rng(case.seed + 1)
    kind = numpy_dtype(case.dtype)
    drawn = [np.asarray(rng.normal(size=shape)).astype(kind) for shape in case.shapes]
    start = [array.astype(numpy_dtype(dtype)) for array in drawn]
    params = [library.n.Parameter(library.constant(a)) for a in start]
    groups: Any = params
    if case.second_rate is not None:
        groups = [{"params": params[:1]}, {"params": params[1:], "lr": case.second_rate}]
    name = case.name if library is OURS or not case.sparse else SPARSE[case.name][0]
    optimizer = getattr(library.t.optim, name)(groups, **case.options)
    for grads in _gradients(case):
        for param, grad in zip(params, grads, strict=True):
            param.grad = None if grad is None else _made(library, grad, kind, dtype, param.shape)
        optimizer.step()
    return [library.array(p) for p in params]


def _made(library: Any, grad: Any, kind: Any, dtype: str, shape: Any) -> Any:
    ids, values = grad
    array = np.asarray(values).astype(kind).astype(numpy_dtype(dtype))
    if ids is None:
        return library.constant(array)
    if library is OURS:
        return RowGrad(ids, array, shape[0])
    place = torch.from_numpy(ids)[None]
    return torch.sparse_coo_tensor(place, TORCH.constant(array), tuple(shape))


def outcome(case: OptimizerCase, library: Any, dtype: str | None = None) -> Any:
    """Return the trained parameters, or the error."""
    try:
        return train(case, library, dtype or case.dtype)
    except Exception as error:
        return error


def difference(case: OptimizerCase) -> str | None:
    """Return the difference between the two libraries, or None."""
    mine, theirs = outcome(case, OURS), outcome(case, TORCH)
    if isinstance(mine, Exception) or isinstance(theirs, Exception):
        both = isinstance(mine, Exception) and isinstance(theirs, Exception)
        return None if both else f"raise\n  ours:  {mine!r}\n  torch: {theirs!r}"
    # Relative to 1, because parameters and steps are near it; torch keeps NAdam's product of
    # momenta in float32.
    rtol = max(EPS[case.dtype] * 64, EPS["float32"] if case.name == "NAdam" else 0.0)
    wrong = [k for k in range(len(mine)) if not _near(mine[k], theirs[k], rtol)]
    if not wrong:
        return None
    truth = outcome(case, TORCH, "float64")
    for k in wrong:
        if case.dtype in ("float16", "bfloat16") and not np.isfinite(theirs[k]).all():
            # Torch loses eps in half precision and divides by 0.
            continue
        error, allowed = np.abs(mine[k] - truth[k]).max(), np.abs(theirs[k] - truth[k]).max()
        if case.dtype == "float64" or not error <= 4 * allowed + rtol * np.abs(truth[k]).max():
            return f"value of parameter {k}\n  ours:  {mine[k]}\n  torch: {theirs[k]}"
    return None


def _near(mine: Any, theirs: Any, rtol: float) -> bool:
    close = near(mine, theirs, rtol)
    return close or bool(np.allclose(mine, theirs, rtol=0, atol=rtol, equal_nan=True))


def shrunk(case: OptimizerCase) -> OptimizerCase:
    """Return the smallest case found that still differs."""
    again = True
    while again:
        again = False
        for smaller in _smaller(case):
            if difference(smaller) is not None:
                case, again = smaller, True
                break
    return case


def _smaller(case: OptimizerCase) -> Any:
    for steps in range(1, case.steps):
        yield dataclasses.replace(case, steps=steps)
    if case.second_rate is not None:
        yield dataclasses.replace(case, second_rate=None)
    elif len(case.shapes) > 1:
        for k in range(len(case.shapes)):
            yield dataclasses.replace(case, shapes=case.shapes[:k] + case.shapes[k + 1 :])
    for option in case.options:
        if option != "lr":
            rest = {k: v for k, v in case.options.items() if k != option}
            yield dataclasses.replace(case, options=rest)


def program(case: OptimizerCase) -> str:
    """Return a program that shows the case in both libraries."""
    return (
        "from tests.parity.fuzz.library import OURS, TORCH\n"
        "from tests.parity.fuzz.optimizer import OptimizerCase, outcome\n\n"
        f"case = {case!r}\n"
        "print(outcome(case, OURS), outcome(case, TORCH), sep='\\n')"
    )
