from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn
from gradmesh.engine.backend import DtypeError, ShapeError

CLASSES = np.array([2, 0, -100, 1, 2])
WEIGHTS = np.array([0.5, 1.0, 2.0])
BITS = np.array([[1.0, 0.0, 1.0]] * 5)

LOSSES: list[tuple[str, dict[str, Any], Any]] = [
    ("MSELoss", {}, np.full((5, 3), 0.3)),
    ("MSELoss", {"reduction": "sum"}, np.full((5, 3), 0.3)),
    ("MSELoss", {"reduction": "none"}, np.full((5, 3), 0.3)),
    ("BCEWithLogitsLoss", {}, BITS),
    ("BCEWithLogitsLoss", {"reduction": "none"}, BITS),
    ("BCEWithLogitsLoss", {"weight": WEIGHTS, "pos_weight": WEIGHTS * 3}, BITS),
    ("CrossEntropyLoss", {}, CLASSES),
    ("CrossEntropyLoss", {"weight": WEIGHTS, "label_smoothing": 0.1}, CLASSES),
    ("CrossEntropyLoss", {"reduction": "sum", "ignore_index": 0}, np.abs(CLASSES) % 3),
    ("CrossEntropyLoss", {"reduction": "none"}, CLASSES),
    ("NLLLoss", {"weight": WEIGHTS}, CLASSES),
    ("NLLLoss", {"reduction": "sum"}, CLASSES),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "options", "target"), LOSSES)
def test_loss_equals_torchs(
    name: str, options: dict[str, Any], target: Any, dtype: str, assert_parity: Any
) -> None:
    torch = pytest.importorskip("torch")

    def cast(value: Any) -> Any:
        is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
        return value.astype(dtype) if is_float else value

    options = {key: cast(value) for key, value in options.items()}
    values = np.random.default_rng(0).normal(size=(5, 3)).astype(dtype)
    sides = []
    for tensor, losses in ((ag.tensor, nn), (torch.tensor, torch.nn)):
        made = {k: tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        x = tensor(values, requires_grad=True)
        out = getattr(losses, name)(**made)(x, tensor(cast(target)))
        out.sum().backward()
        sides.append((out, x.grad))

    (out, grad), (expected, peer) = sides
    assert_parity(out.data, expected)
    assert_parity(grad.data, peer)


@pytest.mark.parametrize("name", ["MSELoss", "BCEWithLogitsLoss"])
def test_the_mean_of_nothing_is_no_number(name: str) -> None:
    loss = getattr(nn, name)()(ag.zeros(0, 2), ag.zeros(0, 2))

    assert np.isnan(loss.item())


def test_wrong_targets_are_named() -> None:
    with pytest.raises(ShapeError, match="mse_loss"):
        nn.MSELoss()(ag.ones(2), ag.ones(3))
    with pytest.raises(ShapeError, match="binary_cross_entropy_with_logits"):
        nn.BCEWithLogitsLoss()(ag.ones(2, 1), ag.ones(2))
    with pytest.raises(DtypeError, match="class numbers"):
        nn.CrossEntropyLoss()(ag.ones(2, 3), ag.ones(2))
    with pytest.raises(ShapeError, match="nll_loss"):
        nn.NLLLoss()(ag.ones(2, 3), ag.tensor([1]))
    with pytest.raises(IndexError, match="outside the 3 classes"):
        nn.CrossEntropyLoss()(ag.ones(2, 3), ag.tensor([0, 3]))
    with pytest.raises(ValueError, match="reduction"):
        nn.MSELoss("median")(ag.ones(2), ag.ones(2))


def test_weights_are_buffers() -> None:
    loss = nn.CrossEntropyLoss(weight=ag.ones(3))

    assert list(loss.state_dict()) == ["weight"]
