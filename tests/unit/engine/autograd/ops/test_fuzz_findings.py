"""Findings of the fuzzer, each as the smallest call that differed from torch."""

import math
from typing import Any

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine.backend import DtypeError, ShapeError
from tests.op_namespace import FUNCTIONS

torch = pytest.importorskip("torch")
F, G = torch.nn.functional, gm.nn.functional
INF, NAN = math.inf, math.nan


def both(values: Any, dtype: str = "float64") -> tuple[Any, Any]:
    array = np.asarray(values, dtype=np.float64)
    ours = gm.from_numpy(array.copy()).to(dtype)
    theirs = torch.from_numpy(array.copy()).to(getattr(torch, dtype))
    return ours.requires_grad_(), theirs.requires_grad_()


def compare(ours: Any, theirs: Any, rtol: float = 1e-12) -> None:
    assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
    assert tuple(ours.shape) == tuple(theirs.shape)
    mine = np.asarray(ours.detach().data, dtype=np.float64)
    np.testing.assert_allclose(mine, theirs.detach().double().numpy(), rtol=rtol, atol=0)


CALLS = {
    "bag-sum": lambda t, f, x: f.embedding_bag(_ids(t), x, mode="sum"),
    "bag-mean": lambda t, f, x: f.embedding_bag(_ids(t), x, mode="mean"),
    "bag-max": lambda t, f, x: f.embedding_bag(_ids(t), x, mode="max"),
    "var": lambda t, f, x: x.var(),
    "std": lambda t, f, x: x.std(0),
    "clamp": lambda t, f, x: x.clamp(1.0, -1.0),
    "norm": lambda t, f, x: x.norm(0.5),
    "gelu": lambda t, f, x: f.gelu(x - 3),
    "batch-norm": lambda t, f, x: f.batch_norm(x, None, None, None, x[0] * 0 - 0.1, training=True),
}


def _ids(t: Any) -> Any:
    return t.tensor([[0, 1], [1, 1]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_half_precision_has_its_dtype_and_digits(name: str, dtype: str) -> None:
    ours, theirs = both([[0.25, 1.5], [1.0, 0.5]], dtype)
    mine, peer = CALLS[name](FUNCTIONS, G, ours), CALLS[name](torch, F, theirs)
    rtol = 0.02 if dtype == "bfloat16" else 3e-3
    compare(mine, peer, rtol)
    mine.sum().backward()
    peer.sum().backward()
    assert ours.grad.dtype == ours.dtype
    if name != "batch-norm":
        compare(ours.grad, theirs.grad, rtol)


def test_a_constant_in_half_precision_normalises_to_its_bias() -> None:
    ours, _ = both(np.ones((4, 1)), "float16")
    bias = gm.tensor([-0.1]).to(gm.float16)
    out = G.batch_norm(ours, None, None, None, bias, training=True)

    assert out.reshape(-1).tolist() == pytest.approx([-0.1] * 4, rel=2e-3)


def test_a_small_variance_far_from_0_keeps_its_digits() -> None:
    far = 1e6 + np.random.default_rng(0).standard_normal((64, 2)) * 1e-3
    ours, theirs = both(far)
    compare(
        G.batch_norm(ours, None, None, training=True, eps=1e-12),
        F.batch_norm(theirs, None, None, training=True, eps=1e-12),
        rtol=1e-4,
    )


@pytest.mark.parametrize("shape", [(0, 2), (2, 2, 0), (1, 2, 0, 3)])
def test_batch_norm_of_no_elements_leaves_its_statistics(shape: tuple[int, ...]) -> None:
    mean, weight = gm.ones(2), gm.ones(2).requires_grad_()
    out = G.batch_norm(gm.zeros(shape), mean, gm.ones(2), weight, gm.zeros(2), training=True)
    out.sum().backward()

    assert tuple(out.shape) == shape
    assert mean.tolist() == [1, 1]
    assert weight.grad.tolist() == [0, 0]


def test_batch_norm_of_one_value_is_refused_where_the_batch_counts() -> None:
    for training in (True, False):
        with pytest.raises(ShapeError, match="more than one value"):
            G.batch_norm(gm.zeros(1, 3), None, None, training=training)


@pytest.mark.parametrize("cast", ["int", "long", "bool"])
def test_casts_to_integers_carry_no_gradient(cast: str) -> None:
    x = gm.ones(2).requires_grad_()

    assert not getattr(x, cast)().requires_grad
    assert not x.to("int8").requires_grad


@pytest.mark.parametrize(
    ("x", "y", "alpha"),
    [
        ([1.0, 2.0], 3, 2),
        ([1.0, 2.0], 3, 0.5),
        ([1, 2], 3, 2),
        ([True, False], [True, True], 2),
        ([1, 2], [1.5, 2.5], 0.5),
    ],
)
def test_alpha_does_not_affect_the_dtype(x: Any, y: Any, alpha: float) -> None:
    other = (gm.tensor(y), torch.tensor(y)) if isinstance(y, list) else (y, y)
    compare(gm.tensor(x).add(other[0], alpha=alpha), torch.tensor(x).add(other[1], alpha=alpha))


def test_alpha_of_integers_is_an_integer() -> None:
    with pytest.raises(DtypeError, match=r"alpha is 0\.5"):
        gm.tensor([1, 2]).sub(1, alpha=0.5)


def test_a_bool_indexes_a_list() -> None:
    assert ["a", "b"][gm.tensor(True)] == "b"  # type: ignore[call-overload]


@pytest.mark.parametrize("pool", [G.max_pool2d, G.avg_pool2d])
def test_padding_is_at_most_half_of_a_window(pool: Any) -> None:
    with pytest.raises(ShapeError, match="half of the window"):
        pool(gm.zeros(1, 1, 3, 3), (1, 3), 1, 1)


def test_max_pool_keeps_nan() -> None:
    values = [[[[NAN, 1.0, 2.0, 3.0], [0.0, NAN, 2.0, NAN]]]]
    ours, theirs = both(values)
    mine, peer = G.max_pool2d(ours, 2), F.max_pool2d(theirs, 2)
    compare(mine, peer)
    mine.sum().backward()
    peer.sum().backward()
    compare(ours.grad, theirs.grad)


def test_a_mean_of_nothing_keeps_its_dtype() -> None:
    assert gm.zeros(0, dtype=gm.float16).mean(0).dtype == gm.float16


@pytest.mark.parametrize(
    ("shape", "target"), [((2, 0), (2,)), ((0,), ()), ((1, 0, 3), (1, 0, 3)), ((0, 0), (0,))]
)
def test_losses_of_no_classes_are_refused(shape: Any, target: Any) -> None:
    wanted = gm.zeros(target) if target == shape else gm.zeros(target, dtype=gm.int64)
    with pytest.raises(ShapeError, match="no classes"):
        G.cross_entropy(gm.zeros(shape), wanted, label_smoothing=0.1)


def test_an_ignored_target_hides_what_is_not_finite() -> None:
    ours, theirs = both([[NAN, INF], [0.5, 0.25]])
    for name in ("nll_loss", "cross_entropy"):
        mine = getattr(G, name)(ours, gm.tensor([0, 1]), ignore_index=0, reduction="none")
        peer = getattr(F, name)(theirs, torch.tensor([0, 1]), ignore_index=0, reduction="none")
        compare(mine, peer)


def test_an_infinite_gradient_stops_at_relu_and_at_padding() -> None:
    ours, theirs = both([-1.0, 4.0, NAN])
    with np.errstate(divide="ignore"):
        gm.ops.sqrt(gm.ops.relu(ours)).sum().backward()
    torch.sqrt(torch.relu(theirs)).sum().backward()
    compare(ours.grad, theirs.grad)

    scales = gm.ones(2).requires_grad_()
    table, ids = gm.ones(1, 1), gm.tensor([0, 0])
    bags = G.embedding_bag(
        ids, table, gm.tensor([0]), mode="sum", per_sample_weights=scales, padding_idx=0
    )
    with np.errstate(divide="ignore"):
        gm.ops.sqrt(bags).sum().backward()
    assert scales.grad.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_probabilities_keep_their_digits(dtype: str) -> None:
    ours, theirs = both([-100.0, -32.0, -20.0, -10.0, 0.0, 30.0], dtype)
    compare(gm.ops.sigmoid(ours), torch.sigmoid(theirs), rtol=1e-6)
    compare(G.silu(ours), F.silu(theirs), rtol=1e-6)


def test_the_root_of_minus_infinity_is_nan() -> None:
    with np.errstate(invalid="ignore"):
        assert math.isnan(gm.tensor(-INF).rsqrt().item())


def test_integers_of_no_elements_may_be_divided_by_0() -> None:
    assert tuple((gm.zeros(0, 2, dtype=gm.int64) % gm.tensor([0, 1])).shape) == (0, 2)


def test_numpy_of_a_parameter_where_nothing_is_recorded() -> None:
    x = gm.ones(2).requires_grad_()
    with gm.no_grad():
        assert x.numpy().tolist() == [1, 1]


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("Adamax", {"weight_decay": -1.0}),
        ("Adamax", {"betas": (1.0, 0.9)}),
        ("Adagrad", {"eps": -1.0}),
        ("Adagrad", {"lr_decay": -0.1}),
        ("SGD", {"momentum": -0.5}),
        ("Adam", {"eps": -1e-8}),
        ("RMSprop", {"alpha": -0.1}),
        ("Rprop", {"etas": (1.2, 0.5)}),
        ("Adadelta", {"rho": 1.5}),
    ],
)
def test_options_out_of_range_are_refused(rule: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        getattr(gm.optim, rule)([gm.ones(1).requires_grad_()], **options)
    with pytest.raises(ValueError, match=r"."):
        getattr(torch.optim, rule)([torch.ones(1, requires_grad=True)], **options)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("heavy", [None, [0.5, 2.0]])
def test_targets_of_logits_get_their_gradient(reduction: str, heavy: Any) -> None:
    ours, theirs = both([[0.5, -1.5], [2.0, 0.0]])
    mine, peer = both([[0.25, 1.0], [0.0, 0.75]])
    factors = (None, None) if heavy is None else [x.detach() for x in both(heavy)]
    name = "binary_cross_entropy_with_logits"
    getattr(G, name)(ours, mine, reduction=reduction, pos_weight=factors[0]).sum().backward()
    getattr(F, name)(theirs, peer, reduction=reduction, pos_weight=factors[1]).sum().backward()

    compare(ours.grad, theirs.grad)
    compare(mine.grad, peer.grad)


def test_weights_of_losses_that_require_grad_are_refused() -> None:
    x, weight = gm.ones(2, 3).requires_grad_(), gm.ones(3).requires_grad_()
    for call in (
        lambda: G.binary_cross_entropy_with_logits(x, x.detach(), weight=weight),
        lambda: G.binary_cross_entropy_with_logits(x, x.detach(), pos_weight=weight),
        lambda: G.nll_loss(x, gm.tensor([0, 1]), weight),
        lambda: G.cross_entropy(x, gm.tensor([0, 1]), weight),
    ):
        with pytest.raises(gm.errors.GradientError, match="weight has no gradient"):
            call()


LONG = {
    "softmax": lambda t, f, x: x.softmax(0),
    "log_softmax": lambda t, f, x: x.log_softmax(0),
    "logsumexp": lambda t, f, x: x.logsumexp(0),
    "cumsum": lambda t, f, x: x.cumsum(0),
    "layer_norm": lambda t, f, x: f.layer_norm(x + t.arange(4096).reshape(-1, 1) % 2, (4096, 2)),
    "avg_pool2d": lambda t, f, x: f.avg_pool2d(x.reshape(2, 1, 64, 64), 64),
    "adaptive_avg_pool2d": lambda t, f, x: f.adaptive_avg_pool2d(x.reshape(2, 1, 64, 64), 1),
    "cross_entropy": lambda t, f, x: f.cross_entropy(x.T, t.tensor([0, 1])),
    "soft": lambda t, f, x: f.cross_entropy(x.T, x.detach().T * 0 + 1 / 4096),
    "mean": lambda t, f, x: x.mean(),
    "max": lambda t, f, x: x.max(),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", LONG)
def test_long_sums_of_half_precision_are_rounded_once(name: str, dtype: str) -> None:
    ours, theirs = both(np.ones((4096, 2)), dtype)
    mine, peer = LONG[name](FUNCTIONS, G, ours), LONG[name](torch, F, theirs)
    rtol = 0.02 if dtype == "bfloat16" else 3e-3
    compare(mine, peer, rtol)
    mine.mean().backward()
    peer.mean().backward()
    found, wanted = (np.asarray(x.grad.detach().tolist()) for x in (ours, theirs))
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=2e-3)


def test_smoothing_over_many_classes_stays_in_the_range_of_float16() -> None:
    ours, _ = both(np.ones((2, 4096)), "float16")
    loss = G.cross_entropy(ours, gm.tensor([0, 1]), label_smoothing=0.5)

    assert loss.item() == pytest.approx(math.log(4096), rel=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_long_gradients_of_half_precision_are_rounded_once(dtype: str) -> None:
    x, bias = both(np.ones((4096, 2)), dtype)[0], both([0.0, 0.0], dtype)[0]
    (x + bias).sum().backward()
    assert bias.grad.tolist() == [4096, 4096]

    for layer in (G.linear, G.linear_relu):
        weight, bias = both(np.eye(2), dtype)[0], both([0.5, 0.5], dtype)[0]
        layer(x, weight, bias).sum().backward()
        assert bias.grad.tolist() == [4096, 4096]

    images, kernel = both(np.ones((4096, 1, 1, 1)), dtype)[0], both(np.ones((1, 1, 1, 1)), dtype)[0]
    G.conv2d(images, kernel).sum().backward()
    assert kernel.grad.item() == 4096

    table, factors = both(np.ones((2, 4096)), dtype)[0], both([[1.0, 1.0]], dtype)[0]
    G.embedding_bag([[0, 1]], table, mode="sum", per_sample_weights=factors).sum().backward()
    assert factors.grad.tolist() == [[4096, 4096]]

    row = both([0.0, 0.0], dtype)[0]
    row.repeat(4096, 1).sum().backward()
    assert row.grad.tolist() == [4096, 4096]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_windows_in_half_precision_are_rounded_once(dtype: str) -> None:
    """Every one of 48 x 48 windows covers the middle of the image, and takes it as its maximum."""
    values = np.zeros((1, 1, 95, 95))
    values[0, 0, 47, 47] = 1
    image, kernel = both(values, dtype)[0], gm.ones(1, 1, 48, 48).to(dtype)
    found = []
    for out in (G.conv2d(image, kernel), G.max_pool2d(image, 48, 1), G.avg_pool2d(image, 48, 1)):
        image.grad = None
        out.sum().backward()
        found.append(image.grad[0, 0, 47, 47].item())

    assert found == [2304, 2304, 1]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_infinite_gradient_of_a_largest_row_stays_with_it(dtype: str) -> None:
    table = both([[0.0], [1.0], [2.0]], dtype)[0]
    out = G.embedding_bag([[0, 1, 2]], table, mode="max", sparse=True)
    out.backward(gm.full((1, 1), INF).to(dtype))

    assert table.grad.to_dense().tolist() == [[0], [0], [INF]]


LONG_SUMS: dict[str, Any] = {
    "down-rows": lambda x: (x.sum(0), x.double().sum(0)),
    "turned": lambda x: (x.T.sum(1), x.double().sum(0)),
    "turned-var": lambda x: (x.T.var(1), x.double().var(0)),
    "broken-run": lambda x: (
        x.reshape(-1, 3, 2).sum((0, 2)),
        x.double().reshape(-1, 3, 2).sum((0, 2)),
    ),
    "every-other": lambda x: (x[::2].sum(), x[::2].double().sum()),
    "channels": lambda x: (x[..., None, None].sum((0, 2, 3)), x.double().sum(0)),
    "running": lambda x: (x[:, 0].cumsum(0), x[:, 0].double().cumsum(0)),
    "all": lambda x: (x.mean(), x.double().mean()),
}


@pytest.mark.parametrize("call", LONG_SUMS.values(), ids=LONG_SUMS)
def test_long_sums_of_any_layout_keep_the_digits_of_float32(call: Any) -> None:
    values = np.random.default_rng(0).random((600_000, 3), dtype=np.float32) + 3
    found, exact = call(gm.from_numpy(values))

    np.testing.assert_allclose(found.numpy(), exact.numpy(), rtol=1e-6)


def test_long_sums_down_rows_keep_the_digits_of_float32() -> None:
    x = gm.from_numpy(np.full((1_000_000, 2), 0.1, np.float32)).requires_grad_()
    assert x.sum(0).tolist() == pytest.approx([1e5, 1e5], rel=1e-6)
    assert x.mean(0).tolist() == pytest.approx([0.1, 0.1], rel=1e-6)

    for layer in (G.linear, G.linear_relu):
        bias = gm.ones(2).requires_grad_()
        out = layer(x.detach(), gm.tensor([[1.0, 0], [0, 1]]), bias)
        out.backward(x.detach())
        assert bias.grad.tolist() == pytest.approx([1e5, 1e5], rel=1e-4)


def test_a_norm_that_was_changed_in_place_has_no_gradient() -> None:
    norm = (gm.tensor([[3.0, 4.0]]).requires_grad_() * 1).norm(dim=1)
    norm *= 2
    with pytest.raises(gm.errors.InplaceError):
        norm.sum().backward()


def test_clipping_takes_squares_beyond_half_precision() -> None:
    weight = gm.zeros(1, dtype=gm.float16).requires_grad_()
    weight.grad = gm.tensor([300.0]).to(gm.float16)

    assert float(gm.nn.clip_grad_norm_([weight], 1.0)) == pytest.approx(300)
    assert weight.grad.tolist() == pytest.approx([1], rel=1e-3)


def test_half_precision_has_small_probabilities() -> None:
    ours, theirs = both([-12.0, -9.0, 12.0], "float16")
    compare(gm.ops.sigmoid(ours), torch.sigmoid(theirs), rtol=0.05)
    compare(G.silu(ours), F.silu(theirs), rtol=0.05)


def test_a_bound_is_rounded_before_it_is_compared() -> None:
    x = gm.tensor([0.1]).to(gm.bfloat16).requires_grad_()
    x.clamp(max=0.1).sum().backward()

    assert x.grad.tolist() == [1]


def test_an_infinite_gradient_goes_to_the_largest_alone() -> None:
    x = gm.tensor([1.0, 2.0, 3.0]).requires_grad_()
    x.max().backward(gm.tensor(INF))
    assert x.grad.tolist() == [0, 0, INF]

    image = gm.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]).requires_grad_()
    G.max_pool2d(image, 2).backward(gm.tensor([[[[INF]]]]))
    assert image.grad.reshape(-1).tolist() == [0, 0, 0, INF]


def test_betas_may_be_a_list() -> None:
    weight = gm.ones(1).requires_grad_()
    optimizer = gm.optim.Adam([weight], betas=[0.9, 0.99])  # type: ignore[arg-type]
    weight.sum().backward()
    optimizer.step()


@pytest.mark.parametrize("number", [-1, -255])
def test_a_negative_number_beside_bytes_wraps(number: int) -> None:
    ours = gm.tensor([1, 2], dtype="uint8")
    theirs = torch.tensor([1, 2], dtype=torch.uint8)

    chosen = gm.ops.where(ours > 1, number, ours)

    assert chosen.tolist() == torch.where(theirs > 1, number, theirs).tolist()


@pytest.mark.parametrize("number", [300, -300])
def test_a_number_that_bytes_cannot_hold_is_refused(number: int) -> None:
    ours = gm.tensor([1, 2], dtype="uint8")
    theirs = torch.tensor([1, 2], dtype=torch.uint8)

    with pytest.raises(DtypeError, match="where: a tensor of uint8 cannot hold"):
        gm.ops.where(ours > 1, ours, number)
    with pytest.raises(RuntimeError, match="overflow"):
        torch.where(theirs > 1, theirs, number)
