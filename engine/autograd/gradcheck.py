"""Compare gradients with finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmesh.engine.autograd.engine import run_backward
from gradmesh.engine.autograd.grad_mode import no_grad
from gradmesh.engine.autograd.row_grad import RowGrad
from gradmesh.engine.autograd.tensor import Tensor
from gradmesh.engine.backend import to_numpy
from gradmesh.engine.backend.dtype import float64
from gradmesh.engine.errors import GradientError


def gradcheck(
    func: Callable[..., Any],
    inputs: Sequence[Any],
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
) -> bool:
    """Check the gradients of a function against finite differences, at float64 inputs.

    Args:
        func: Takes the inputs, returns a tensor or a tuple of tensors.
        inputs: Tensors and other arguments; those that require a gradient are checked.
        eps: Half the distance between the two values of a difference.
        atol: Largest absolute error allowed.
        rtol: Largest relative error allowed.

    Returns:
        True.

    Raises:
        GradientError: If a gradient differs, naming the input, both values and the error.
    """
    checked = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    if not checked:
        raise GradientError("gradcheck needs an input that requires a gradient")
    for x in checked:
        if x.dtype != float64:
            raise GradientError(f"gradcheck needs float64 inputs, one is {x.dtype}")
    for position in range(len(_outputs(func(*inputs)))):
        _check_output(func, inputs, checked, position, (eps, atol, rtol))
    return True


def _check_output(
    func: Callable[..., Any],
    inputs: Sequence[Any],
    checked: list[Tensor],
    position: int,
    tolerances: tuple[float, float, float],
) -> None:
    eps, atol, rtol = tolerances
    out = _outputs(func(*inputs))[position]
    if not out.requires_grad:
        return
    seed = np.random.default_rng(0).uniform(0.5, 1.5, out.shape)
    into: dict[Any, Any] = {}
    run_backward([out], [_like(out, seed)], into=into)
    for number, x in enumerate(checked):
        expected = _numeric(func, inputs, x, position, seed, eps)
        found = into.get(x, np.zeros(x.shape))
        found = to_numpy(found.to_dense() if isinstance(found, RowGrad) else found)
        if not np.allclose(found, expected, rtol=rtol, atol=atol):
            worst = float(np.abs(found - expected).max())
            raise GradientError(
                f"gradient of output {position} for input {number} is off by {worst:.3g}:\n"
                f"computed\n{found}\nfrom differences\n{expected}"
            )


def _numeric(
    func: Callable[..., Any], inputs: Sequence[Any], x: Tensor, position: int, seed: Any, eps: float
) -> Any:
    result = np.zeros(x.shape)
    for index in np.ndindex(*x.shape):
        before = float(x.data[index])
        values = []
        for shifted in (before + eps, before - eps):
            x.data[index] = shifted
            with no_grad():
                values.append(
                    float((to_numpy(_outputs(func(*inputs))[position].data) * seed).sum())
                )
        x.data[index] = before
        result[index] = (values[0] - values[1]) / (2 * eps)
    return result


def _outputs(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _like(out: Tensor, seed: Any) -> Any:
    from gradmesh.engine.backend import to_device

    return to_device(seed, out.device)
