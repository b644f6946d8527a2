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
    ("L1Loss", {}, np.full((5, 3), 0.3)),
    ("L1Loss", {"reduction": "none"}, np.full((5, 3), 0.3)),
    ("HuberLoss", {"delta": 0.5}, np.full((5, 3), 0.3)),
    ("HuberLoss", {"reduction": "sum"}, np.full((5, 3), 0.3)),
    ("SmoothL1Loss", {"beta": 0.5}, np.full((5, 3), 0.3)),
    ("SmoothL1Loss", {"reduction": "none", "beta": 0.0}, np.full((5, 3), 0.3)),
    ("BCEWithLogitsLoss", {}, BITS),
    ("BCEWithLogitsLoss", {"reduction": "none"}, BITS),
    ("BCEWithLogitsLoss", {"weight": WEIGHTS, "pos_weight": WEIGHTS * 3}, BITS),
    ("CrossEntropyLoss", {}, CLASSES),
    ("CrossEntropyLoss", {"weight": WEIGHTS, "label_smoothing": 0.1}, CLASSES),
    ("CrossEntropyLoss", {"reduction": "sum", "ignore_index": 0}, np.abs(CLASSES) % 3),
    ("CrossEntropyLoss", {"reduction": "none"}, CLASSES),
    ("CrossEntropyLoss", {"weight": WEIGHTS, "label_smoothing": 0.1}, BITS / 2),
    ("NLLLoss", {"weight": WEIGHTS}, CLASSES),
    ("NLLLoss", {"reduction": "sum"}, CLASSES),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "options", "target"), LOSSES)
def test_loss_equals_torch(
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


@pytest.mark.parametrize(
    "name", ["MSELoss", "L1Loss", "HuberLoss", "SmoothL1Loss", "BCEWithLogitsLoss"]
)
def test_the_mean_of_no_elements_is_nan(name: str) -> None:
    loss = getattr(nn, name)()(ag.zeros(0, 2), ag.zeros(0, 2))

    assert np.isnan(loss.item())


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "shapes", [((4, 1), (4,)), ((3,), ()), ((0, 2), (2,)), ((2, 1, 3), (4, 1))]
)
def test_shapes_that_differ_broadcast_with_a_warning(
    name: str, reduction: str, shapes: Any, assert_parity: Any
) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    values = [np.asarray(rng.normal(size=shape)) for shape in shapes]
    sides = []
    for tensor, losses in ((ag.tensor, nn.functional), (torch.tensor, torch.nn.functional)):
        x, target = (tensor(v, requires_grad=True) for v in values)
        with pytest.warns(UserWarning, match="broadcast"):
            out = getattr(losses, name)(x, target, reduction=reduction)
        out.sum().backward()
        sides.append((out, x.grad, target.grad))

    for found, expected in zip(*sides, strict=True):
        assert_parity(found.data, expected)


@pytest.mark.filterwarnings("ignore:.*broadcast")
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss"])
@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("float32", "float64")])
def test_a_target_without_axes_counts_for_the_dtype(
    name: str, dtypes: Any, assert_parity: Any
) -> None:
    torch = pytest.importorskip("torch")
    given = [np.array([0.5, 1.25, -2.0], dtypes[0]), np.array(0.75, dtypes[1])]
    sides = []
    for tensor, losses in ((ag.tensor, nn.functional), (torch.tensor, torch.nn.functional)):
        x, target = (tensor(v, requires_grad=True) for v in given)
        out = getattr(losses, name)(x, target)
        out.backward()
        sides.append((out, x.grad, target.grad))

    assert [str(part.dtype) for part in sides[0]] == [dtypes[1], *dtypes]
    for found, expected in zip(*sides, strict=True):
        assert_parity(found.data, expected)


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"])
def test_a_target_of_another_dtype_is_promoted(name: str) -> None:
    x = ag.tensor([1.0, 2.5], requires_grad=True)
    loss = getattr(nn.functional, name)

    whole = loss(x, ag.tensor([1, 2]))
    wide = loss(x, ag.tensor(np.array([1.0, 2.0])))
    (whole + wide).backward()

    assert (whole.dtype, wide.dtype, x.grad.dtype) == (np.float32, np.float64, np.float32)
    assert whole.item() == wide.item()
    with pytest.raises(DtypeError, match=f"{name}: takes floats, not int64"):
        loss(ag.tensor([1]), ag.tensor([2]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"])
def test_counts_in_half_precision_do_not_saturate(name: str, dtype: str) -> None:
    x = ag.ones(100_000, dtype=dtype).requires_grad_()

    loss = getattr(nn.functional, name)(x, ag.zeros(100_000, dtype=dtype))
    loss.backward()

    assert str(loss.dtype) == str(x.grad.dtype) == dtype
    assert loss.item() == (1.0 if name in ("mse_loss", "l1_loss") else 0.5)
    np.testing.assert_allclose(
        x.grad.double().numpy(), 2e-5 if name == "mse_loss" else 1e-5, rtol=0.01
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("is_soft", [False, True])
def test_cross_entropy_keeps_half_precision(dtype: str, is_soft: bool) -> None:
    x = ag.zeros(4, 2, dtype=dtype).requires_grad_()
    target = ag.ones(4, 2, dtype=dtype) * 0.5 if is_soft else ag.zeros(4, dtype="int64")

    loss = nn.functional.cross_entropy(x, target, label_smoothing=0.1)
    loss.backward()

    assert str(loss.dtype) == str(x.grad.dtype) == dtype
    assert loss.item() == pytest.approx(np.log(2), rel=0.01)


def test_wrong_targets_are_named() -> None:
    for loss, name in (
        (nn.MSELoss(), "mse_loss"),
        (nn.L1Loss(), "l1_loss"),
        (nn.HuberLoss(), "huber_loss"),
        (nn.SmoothL1Loss(), "smooth_l1_loss"),
    ):
        with pytest.raises(ShapeError, match=name):
            loss(ag.ones(2), ag.ones(3))
    with pytest.raises(ValueError, match="huber_loss: delta is 0"):
        nn.HuberLoss(delta=0)(ag.ones(2), ag.ones(2))
    with pytest.raises(ValueError, match="smooth_l1_loss: beta is -1"):
        nn.SmoothL1Loss(beta=-1)(ag.ones(2), ag.ones(2))
    with pytest.raises(ShapeError, match="binary_cross_entropy_with_logits"):
        nn.BCEWithLogitsLoss()(ag.ones(2, 1), ag.ones(2))
    with pytest.raises(DtypeError, match="class numbers"):
        nn.CrossEntropyLoss()(ag.ones(2, 3), ag.ones(2))
    with pytest.raises(ShapeError, match="nll_loss"):
        nn.NLLLoss()(ag.ones(2, 3), ag.tensor([1]))
    with pytest.raises(ShapeError, match="cross_entropy"):
        nn.CrossEntropyLoss()(ag.ones(3), ag.tensor([1, 2]))
    with pytest.raises(ShapeError, match=r"cross_entropy: weight \(2,\) does not fit 3 classes"):
        nn.CrossEntropyLoss(ag.ones(2))(ag.ones(2, 3), ag.ones(2, 3))
    with pytest.raises(ShapeError, match=r"nll_loss: weight \(4,\) does not fit 3 classes"):
        nn.NLLLoss(ag.ones(4))(ag.ones(2, 3), ag.tensor([0, 1]))
    with pytest.raises(DtypeError, match="cross_entropy: weight float64 and input float32"):
        nn.CrossEntropyLoss(ag.ones(3, dtype="float64"))(ag.ones(2, 3), ag.tensor([0, 1]))
    with pytest.raises(DtypeError, match="cross_entropy: takes floats, not int64"):
        nn.CrossEntropyLoss()(ag.tensor([[1, 2]]), ag.tensor([0]))
    with pytest.raises(ValueError, match="cross_entropy: ignore_index is 1, but probabilities"):
        nn.CrossEntropyLoss(ignore_index=1)(ag.ones(2, 3), ag.ones(2, 3))
    with pytest.raises(ValueError, match=r"cross_entropy: label_smoothing is 1\.5; use 0 to 1"):
        nn.CrossEntropyLoss(label_smoothing=1.5)(ag.ones(2, 3), ag.tensor([0, 1]))
    with pytest.raises(IndexError, match="outside the 3 classes"):
        nn.CrossEntropyLoss()(ag.ones(2, 3), ag.tensor([0, 3]))
    with pytest.raises(ValueError, match="reduction"):
        nn.MSELoss("median")(ag.ones(2), ag.ones(2))


def test_weights_are_buffers() -> None:
    loss = nn.CrossEntropyLoss(weight=ag.ones(3))

    assert list(loss.state_dict()) == ["weight"]
