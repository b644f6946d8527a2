"""MultiheadAttention: gradcheck, torch's values, gradients and names, masks and errors."""

from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn
from gradmesh.engine.backend import DtypeError, Generator, ShapeError, to_numpy
from gradmesh.engine.backend.cuda import stand_in
from tests.cupy_stand_in import StandInModule

BATCH, LENGTH, KEYS, DIM, HEADS = 2, 3, 4, 6, 2
CAUSAL = np.triu(np.ones((LENGTH, KEYS), bool), 1)
PADDING = np.array([[False, False, True, False], [False, True, True, False]])

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"bias": False}, {"need_weights": False}),
    ({"batch_first": True}, {"average_attn_weights": False}),
    ({"kdim": 5, "vdim": 3}, {}),
    ({"kdim": 5, "vdim": 3, "bias": False, "batch_first": True}, {"need_weights": False}),
    ({"kdim": 5}, {"key_padding_mask": PADDING}),
    ({}, {"attn_mask": CAUSAL}),
    ({}, {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False}),
    ({}, {"attn_mask": CAUSAL, "key_padding_mask": PADDING}),
    ({"batch_first": True}, {"attn_mask": np.sin(np.arange(12.0)).reshape(3, 4)}),
    ({}, {"attn_mask": np.sin(np.arange(48.0)).reshape(4, 3, 4), "need_weights": False}),
    ({}, {"key_padding_mask": np.cos(np.arange(8.0)).reshape(2, 4)}),
    ({}, {"attn_mask": np.where(CAUSAL, -np.inf, 0.0), "key_padding_mask": np.zeros((2, 4))}),
    ({"dropout": 0.5}, {}),
]
GRID = [
    (options, call, source)
    for options, call in CASES
    for source in ("self", "memory", "apart")
    if source == "apart" or not {"kdim", "vdim"} & set(options)
]


def inputs(options: dict[str, Any], source: str, has_batch: bool, dtype: str) -> list[Any]:
    """Query, key and value, the same object where they are the same."""
    rng = np.random.default_rng(0)

    def draw(length: int, dim: int) -> Any:
        if not has_batch:
            shape: tuple[int, ...] = (length, dim)
        else:
            first = options.get("batch_first")
            shape = (BATCH, length, dim) if first else (length, BATCH, dim)
        return rng.normal(size=shape).astype(dtype)

    if source == "self":
        x = draw(KEYS, DIM)
        return [x, x, x]
    query, key = draw(LENGTH, DIM), draw(KEYS, options.get("kdim", DIM))
    return [query, key, key if source == "memory" else draw(KEYS, options.get("vdim", DIM))]


def masks(call: dict[str, Any], dtype: str, square: bool, has_batch: bool) -> dict[str, Any]:
    found = dict(call)
    for name in ("attn_mask", "key_padding_mask"):
        mask = call.get(name)
        if mask is None:
            continue
        if name == "attn_mask" and square:
            last = mask[..., -1:, :]
            # The last place of a causal mask may look at all.
            last = last & False if mask.dtype == bool else last
            mask = np.concatenate([mask, last], axis=-2)
        if name == "attn_mask" and not has_batch and mask.ndim == 3:
            mask = mask[:HEADS]
        if name == "key_padding_mask" and not has_batch:
            mask = mask[0]
        found[name] = mask if mask.dtype == bool else mask.astype(dtype)
    return found


def as_tensors(make: Any, call: dict[str, Any]) -> dict[str, Any]:
    return {k: make(v) if isinstance(v, np.ndarray) else v for k, v in call.items()}


@pytest.mark.parametrize(("options", "call", "source"), GRID)
@pytest.mark.parametrize(
    ("dtype", "has_batch"), [("float32", True), ("float64", True), ("float64", False)]
)
def test_attention_equals_torch(
    options: dict[str, Any],
    call: dict[str, Any],
    source: str,
    has_batch: bool,
    dtype: str,
    assert_parity: Any,
) -> None:
    torch = pytest.importorskip("torch")
    mine = nn.MultiheadAttention(DIM, HEADS, **options).to(dtype=dtype)
    peer = torch.nn.MultiheadAttention(DIM, HEADS, **options).to(getattr(torch, dtype))
    with torch.no_grad():
        # Biases begin at 0, which would hide what they do.
        for param in peer.parameters():
            param.copy_(torch.tensor(np.random.default_rng(7).normal(0, 0.4, size=param.shape)))
    mine.load_state_dict({k: ag.tensor(v.numpy()) for k, v in peer.state_dict().items()})
    if options.get("dropout"):
        mine.eval(), peer.eval()
    arrays = inputs(options, source, has_batch, dtype)
    distinct = {id(a): a for a in arrays}
    ours = {k: ag.tensor(a, requires_grad=True) for k, a in distinct.items()}
    theirs = {k: torch.tensor(a, requires_grad=True) for k, a in distinct.items()}
    call = masks(call, dtype, source == "self", has_batch)

    out, weights = mine(*[ours[id(a)] for a in arrays], **as_tensors(ag.tensor, call))
    wanted, shares = peer(*[theirs[id(a)] for a in arrays], **as_tensors(torch.tensor, call))
    seed = np.random.default_rng(1).normal(size=out.shape).astype(dtype)
    found, expected = (out * ag.tensor(seed)).sum(), (wanted * torch.tensor(seed)).sum()
    if weights is not None:
        found, expected = found + (weights * weights).sum(), expected + (shares * shares).sum()
    found.backward()
    expected.backward()

    assert (weights is None) == (shares is None)
    assert_parity(out.data, wanted)
    if weights is not None:
        assert_parity(weights.data, shares)
    for a, b in zip(ours.values(), theirs.values(), strict=True):
        assert_parity(a.grad.data, b.grad)
    for (name, p), (other, q) in zip(mine.named_parameters(), peer.named_parameters(), strict=True):
        assert name == other
        # The bias of keys changes no weights: its gradient is rounding around 0.
        scale = float(abs(q.grad).max())
        within = scale * (1e-5 if dtype == "float32" else 1e-11)
        np.testing.assert_allclose(p.grad.data, q.grad.numpy(), rtol=0, atol=within)


@pytest.mark.parametrize(("options", "call"), CASES[::4])
def test_gradients_of_inputs_and_parameters(options: dict[str, Any], call: dict[str, Any]) -> None:
    layer = nn.MultiheadAttention(DIM, HEADS, **options).double().eval()
    tensors = [ag.tensor(a, requires_grad=True) for a in inputs(options, "apart", True, "float64")]
    call = as_tensors(ag.tensor, call)

    def run(query: Any, key: Any, value: Any, *_: Any) -> Any:
        out, weights = layer(query, key, value, **call)
        return out if weights is None else (out, weights)

    assert ag.gradcheck(run, [*tensors, *layer.parameters()])


@pytest.mark.parametrize(("options", "call"), CASES)
def test_the_stand_in_for_a_gpu_gives_the_same(
    options: dict[str, Any], call: dict[str, Any]
) -> None:
    results = []
    with stand_in(StandInModule()):
        for device in ("cpu", "cuda"):
            layer = nn.MultiheadAttention(DIM, HEADS, generator=Generator(0), **options)
            layer.double().to(device).eval()
            arrays = inputs(options, "apart", True, "float64")
            tensors = [ag.tensor(a, device=device, requires_grad=True) for a in arrays]
            sent = as_tensors(lambda a, d=device: ag.tensor(a, device=d), call)
            out, _ = layer(*tensors, **sent)
            (out * out).sum().backward()
            leaves = [*tensors, *layer.parameters()]
            results.append([to_numpy(out.data), *(to_numpy(x.grad.data) for x in leaves)])

    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", ["attn_mask", "key_padding_mask"])
def test_a_fully_masked_position_equals_torch(name: str, need_weights: bool) -> None:
    torch = pytest.importorskip("torch")
    mine, peer = nn.MultiheadAttention(DIM, HEADS), torch.nn.MultiheadAttention(DIM, HEADS)
    mine.load_state_dict({k: ag.tensor(v.numpy()) for k, v in peer.state_dict().items()})
    x = np.random.default_rng(0).normal(size=(LENGTH, BATCH, DIM)).astype(np.float32)
    mask = np.zeros((LENGTH, LENGTH) if name == "attn_mask" else (BATCH, LENGTH), bool)
    mask[1] = True
    a, b = ag.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)

    out, _ = mine(a, a, a, need_weights=need_weights, **{name: ag.tensor(mask)})
    wanted, _ = peer(b, b, b, need_weights=need_weights, **{name: torch.tensor(mask)})

    np.testing.assert_allclose(out.data, wanted.detach().numpy(), rtol=1e-4, atol=1e-6)
    if not need_weights:
        out.sum().backward()
        wanted.sum().backward()
        np.testing.assert_allclose(a.grad.data, b.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"kdim": 5, "vdim": 3}, {"bias": False}])
def test_names_shapes_and_initial_values_equal_torch(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    mine = nn.MultiheadAttention(60, 4, **options)
    peer = torch.nn.MultiheadAttention(60, 4, **options)

    shapes = [{k: tuple(v.shape) for k, v in m.state_dict().items()} for m in (mine, peer)]
    assert list(shapes[0].items()) == list(shapes[1].items())
    for (name, p), (_, q) in zip(mine.named_parameters(), peer.named_parameters(), strict=True):
        ours, theirs = p.data, q.detach().numpy()
        if name.endswith("bias"):
            assert not ours.any()
            assert not theirs.any()
        else:
            assert abs(ours).max() == pytest.approx(abs(theirs).max(), rel=0.1)
            assert ours.std() == pytest.approx(theirs.std(), rel=0.1)


def test_dropout_acts_in_training_only_and_on_the_weights() -> None:
    layer = nn.MultiheadAttention(DIM, HEADS, dropout=0.5, generator=Generator(0))
    x = ag.randn(20, BATCH, DIM)

    _, weights = layer(x, x, x, average_attn_weights=False)
    _, calm = layer.eval()(x, x, x, average_attn_weights=False)

    dropped = weights.data == 0
    assert 0.3 < dropped.mean() < 0.7
    np.testing.assert_allclose(weights.data[~dropped], 2 * calm.data[~dropped], rtol=1e-5)


@pytest.mark.parametrize("shape", [(0, BATCH, DIM), (LENGTH, 0, DIM)])
def test_an_empty_input_gives_an_empty_output(shape: tuple[int, ...]) -> None:
    layer = nn.MultiheadAttention(DIM, HEADS)
    x = ag.randn(*shape, requires_grad=True)

    out, _ = layer(x, x, x)
    out.sum().backward()

    assert out.shape == x.grad.shape == shape


def test_hooks_see_a_result_without_weights() -> None:
    layer = nn.MultiheadAttention(DIM, HEADS)
    seen: list[Any] = []
    layer.register_full_backward_hook(lambda module, given, results: seen.append(len(results)))
    x = ag.randn(LENGTH, BATCH, DIM, requires_grad=True)

    layer(x, x, x, need_weights=False)[0].sum().backward()

    assert seen == [1]


@pytest.mark.parametrize("args", [(5, 2), (0, 1), (4, 0)])
def test_heads_must_share_the_dim(args: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="heads"):
        nn.MultiheadAttention(*args)


@pytest.mark.parametrize(
    "options", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"dropout": 1.5}], ids=str
)
def test_options_that_are_not_offered_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        nn.MultiheadAttention(DIM, HEADS, **options)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        ({"is_causal": True}, ValueError, "attn_mask"),
        ({"attn_mask": np.zeros((2, 4))}, ShapeError, "attn_mask"),
        ({"attn_mask": np.zeros((5, 3, 4))}, ShapeError, "attn_mask"),
        ({"key_padding_mask": np.zeros((4, 2))}, ShapeError, "key_padding_mask"),
        ({"attn_mask": np.zeros((3, 4), np.int64)}, DtypeError, "attn_mask"),
        ({"key_padding_mask": np.zeros((2, 4), np.int64)}, DtypeError, "key_padding_mask"),
    ],
)
def test_masks_that_do_not_fit_are_refused(
    call: dict[str, Any], error: type[Exception], match: str
) -> None:
    layer = nn.MultiheadAttention(DIM, HEADS)
    tensors = [ag.tensor(a) for a in inputs({}, "apart", True, "float32")]

    with pytest.raises(error, match=match):
        layer(*tensors, **as_tensors(ag.tensor, call))


@pytest.mark.parametrize(
    "shapes",
    [
        [(3, 2, 6), (4, 2, 6), (3, 2, 6)],
        [(3, 2, 6), (4, 3, 6), (4, 3, 6)],
        [(3, 2, 5), (4, 2, 6), (4, 2, 6)],
        [(3, 6), (4, 2, 6), (4, 2, 6)],
        [(6,), (6,), (6,)],
    ],
)
def test_inputs_that_do_not_fit_are_refused(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ShapeError, match="cannot take query"):
        nn.MultiheadAttention(DIM, HEADS)(*[ag.ones(*shape) for shape in shapes])
