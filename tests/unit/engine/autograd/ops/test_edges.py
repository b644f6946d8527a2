"""The edges of every op against torch: no axes, no elements, no slope, no such axis."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd, nn
from gradmesh.engine.autograd import ops
from gradmesh.engine.backend import DtypeError, ShapeError

INF, NAN = math.inf, math.nan
OURS = SimpleNamespace(**{**vars(ops), **vars(autograd)})

# Each line is one call, read by us and by torch: t the tensor functions, f the functional ones,
# z a tensor without axes, v [3], m [2, 3], e [2, 0], n [0, 3], i an index [2], k an index without
# axes.
WITHOUT_AXES = """
z.sum(0) | z.sum(-1) | z.sum() | z.sum(0, keepdim=True) | z.sum(1) | z.mean(0) | z.mean()
z.var() | z.var(0) | z.std() | z.std(0, keepdim=True) | z.norm() | z.norm(1, 0) | z.norm(INF)
z.max() | z.max(0).values | z.max(-1, keepdim=True).values | z.min(0).indices | z.max(1) | z.min()
z.argmax() | z.argmax(0) | z.argmin(-1, keepdim=True) | z.argmax(1) | z.any() | z.all(0)
z.any(1) | z.flatten() | z.flatten(0, -1) | z.flatten(1) | z.reshape(1, 1) | z.reshape(())
z.reshape(-1) | z.squeeze() | z.squeeze(0) | z.squeeze(-1) | z.squeeze(1) | z.unsqueeze(0)
z.unsqueeze(-1) | z.unsqueeze(1) | z.transpose(0, 0) | z.transpose(-1, 0) | z.transpose(0, 1)
z.T | z.t() | z.permute(()) | z.expand(2, 3) | z.expand(1) | z.expand(()) | z.expand(-1)
z.clone() | z.view(1) | z.softmax(0) | z.softmax(-1) | z.softmax(1) | z.log_softmax(0)
z.logsumexp(0) | z.logsumexp(-1) | z.logsumexp(0, keepdim=True) | z.logsumexp(1) | z.cumsum(0)
z.cumsum(-1) | z.cumsum(1) | z.split(1) | z.chunk(1) | z.unbind() | t.cat([z, z])
t.stack([z, z]) | t.stack([z, z], 1) | z[()] | z[...] | z[None] | z[None, ..., None] | z[0]
z[z > 0] | z[True] | z[:] | f.gelu(z) | f.gelu(z, approximate="tanh") | f.silu(z) | f.relu(z)
f.softplus(z) | f.leaky_relu(z) | z.exp() | z.log() | z.sqrt() | z.sin() | z.cos() | z.abs()
z.sigmoid() | z.tanh() | z.log1p() | z.neg() | z.square() | z.reciprocal() | z.rsqrt() | z ** 2
2 ** z | z ** z | z * v | v / z | z - 1 | t.maximum(z, v) | t.minimum(z, z) | z.clamp(0, 1)
z.clamp(min=v) | v.clamp(max=z) | t.where(z > 0, z, v) | t.where(v > 0, z, 0.0)
v.masked_fill(v > 0, 2.0) | z.masked_fill(z > 0, 1) | v.masked_fill(v > 0, z)
v.masked_fill(v > 0, v) | z.gather(0, k) | z.gather(0, i) | z.gather(1, k) | z @ v | v @ z
v.dot(v) | z.dot(z) | f.mse_loss(z, z * 2) | f.l1_loss(z, z * 2) | z.index_select(0, k)
f.mse_loss(z, z * 2, reduction="none") | z.double() | z.narrow(0, 0, 1) | z.size(0)
z.contiguous() | f.binary_cross_entropy_with_logits(z, (z > 0).double()) | f.dropout(z, 0.0)
f.cross_entropy(v, k) | f.nll_loss(v, k) | f.layer_norm(v, (3,)) | v[k] | m[k, :, None]
v.index_select(0, k)
"""
WITHOUT_ELEMENTS = """
e.softmax(1) | e.softmax(0) | e.log_softmax(1) | e.logsumexp(1) | e.logsumexp((0, 1))
n.logsumexp(0) | e.sum(1) | e.mean(1) | e.mean() | e.sum() | e.cumsum(1) | e.cumsum(0) | e.var(1)
e.std(1) | e.var() | n.var(0) | n.mean(0) | v[:1].var() | v[:1].std() | v.var(correction=5)
v[:2].std(correction=2) | e.max() | e.max(1) | e.max(0).values | e.max(0).indices | e.min(1)
e.argmax() | e.argmax(1) | e.argmax(0) | e.argmin() | e.any() | e.all(1) | e.any(1) | e.norm()
e.norm(1, 1) | e.norm(INF) | e.norm(INF, 0) | e.norm(3) | e.norm(-1) | e.norm(0) | e.chunk(3, 1)
e.chunk(2, 0) | e.split(3, 1) | e.split(0, 1) | n.split([0, 0]) | n.split([]) | v.split(0)
v.split(-1) | v.split([-1, 4]) | v.split([1, 1]) | n.unbind() | n.chunk(2) | v.chunk(5)
v.chunk(0) | n.flatten() | n.flatten(1) | n.flatten(1, 1) | n.reshape(0, -1) | n.reshape(-1, 3)
n.reshape(-1, 0) | n.reshape(-1) | n.reshape(5, 0) | t.cat([n, v]) | t.cat([n[:, 0], m])
t.cat([m, n[:, 0]], 1) | t.cat([n, m]) | t.cat([n[:, 0], n[:, 0]]) | t.cat([n[:, 0], n[:, 0]], 1)
t.cat([n[:, 0].double(), m.float()]) | t.cat([e, m], 1) | t.stack([n, n]) | n @ m.T | n.T @ n
e @ e.T | n.transpose(0, 1) | n[:, 0] | e[0] | n[0] | n[v[:0].long()] | n.expand(2, 0, 3)
m[:1].expand(0, 3) | n.squeeze() | n.unsqueeze(0) | n.max(1).values | f.gelu(n) | n.clamp(0, 1)
t.where(n > 0, n, 0.0) | n.masked_fill(n > 0, 1.0) | f.mse_loss(n, n) | f.l1_loss(n, n)
f.mse_loss(n, n, reduction="sum") | f.softplus(e) | v[[]] | v[v > 9] | t.maximum(n, v)
n.permute(1, 0) | n.exp() | f.linear(n, m) | f.leaky_relu(n) | f.layer_norm(n, (3,))
"""
AXES = """
m.sum(2) | m.sum(-3) | m.sum((0, 0)) | m.sum((0, -2)) | m.sum(()) | m.mean(()) | m.sum((-1, 0))
m.var(2) | m.std(-3) | m.norm(2, 2) | m.norm(2, (0, 1)) | m.norm(dim=-1, keepdim=True) | m.norm(1)
m.max(2) | m.max(-2).values | m.max(-1, keepdim=True).values | m.min(-1).indices | m.argmax(2)
m.argmax(keepdim=True) | m.argmax(-1, keepdim=True) | m.argmin(0, True) | m.any(2) | m.any((0, 1))
m.all(-1, keepdim=True) | m.any(keepdim=True) | m.softmax(2) | m.softmax(-2) | m.log_softmax(-3)
m.logsumexp(2) | m.logsumexp((0, -1)) | m.logsumexp(-2, keepdim=True) | m.cumsum(2) | m.cumsum(-2)
m.transpose(0, 2) | m.transpose(-1, -2) | m.permute(0, 2) | m.permute(0, 0) | m.permute(0)
m.permute(-1, 0) | m.squeeze(2) | m[:1].squeeze(-2) | m[:1, :, None].squeeze((0, 2))
m.unsqueeze(3) | m.unsqueeze(-3) | m.unsqueeze(-4) | m.flatten(2) | m.flatten(1, 0)
m.flatten(-2) | m.size(2) | m.split(1, 2) | m.split(2, -1) | m.chunk(2, -1) | m.chunk(2, 2)
m.unbind(-1) | m.unbind(2) | t.cat([m, m], 2) | t.cat([m, m], -1) | t.stack([m, m], 3)
t.stack([m, m], -1) | t.stack([m, v]) | t.cat([m, v]) | t.stack([m, m], -4)
t.cat([m, m.double()]) | m.gather(2, m.long()) | m.narrow(2, 0, 1) | m.gather(-1, i[:, None])
m.gather(1, i[:, None] - 1) | m.gather(1, i[:, None] + 2) | m.narrow(-1, 1, 2)
m.index_select(-1, i) | m.index_select(2, i) | m.expand(2, -1) | v.expand(2, -1) | v.expand(-1, 3)
m.expand(3) | v.expand(4) | v.expand(-2) | m[:, None].expand(-1, 4, -1) | m.reshape(-1, -1)
m.reshape(-2, 3) | m.reshape(4) | m.reshape(2, -1) | m + m[:, :2] | m.sum(dim=1, keepdim=True)
m.var(False) | m.var(1, False) | m.std(1, True) | m.var(1, correction=0, keepdim=True)
m.max(m * 2) | v.min(v - 1) | m.masked_fill(v > 0, 1.0) | v.masked_fill(m > 0, 1.0)
m.masked_fill(i, 1.0) | t.where(i, i, i) | t.where(v > 0, m, 1) | t.where(v > 0, 1, 2.5)
t.where(v > 0, 1, 2) | t.where(i > 0, m, m) | t.cat([]) | t.stack([]) | m.matmul(m) | m.clamp()
m.norm("nuc2") | m.var(correction=0.5) | m.std(1, correction=1.5) | m.any(()) | m.all(())
m.gather(0, i[:, None].expand(2, 4)) | m.gather(1, i.expand(3, 2)) | m[:1].gather(1, i.expand(2, 2))
m.index_select(0, i[None]) | m.index_select(0, i - 1) | m.index_select(1, v > 0)
z.index_select(0, i)
"""
FACTORS = """
f.binary_cross_entropy_with_logits(v, v.detach(), weight=m.detach())
f.binary_cross_entropy_with_logits(v, v.detach(), pos_weight=m.detach())
f.binary_cross_entropy_with_logits(v, v.detach(), weight=v.detach()[:1], reduction="none")
f.binary_cross_entropy_with_logits(m, m.detach(), weight=v.detach(), pos_weight=z.detach())
f.binary_cross_entropy_with_logits(m, m.detach(), weight=v.detach().float())
f.binary_cross_entropy_with_logits(i, v[:2].detach()) | f.layer_norm(i, (2,))
f.batch_norm(i[None].expand(3, 2), None, None, training=True) | f.group_norm(i[None], 1)
f.cross_entropy(m, m.detach().softmax(1), weight=v) | f.cross_entropy(m, m, weight=v)
f.cross_entropy(m, m, weight=v, label_smoothing=0.25, reduction="sum")
f.cross_entropy(m, m, weight=v, reduction="none") | f.cross_entropy(v, v, weight=v * 2)
"""


def lines(text: str) -> list[str]:
    return [
        call.strip() for line in text.splitlines() for call in line.split(" | ") if call.strip()
    ]


def inputs(make: Any) -> dict[str, Any]:
    return {
        "z": make(0.7),
        "v": make([0.5, -1.5, 2.0]),
        "m": make([[0.5, -1.5, 2.0], [2.5, 1.0, -3.0]]),
        "e": make(np.zeros((2, 0)).tolist()),
        "n": make(np.zeros((0, 3)).tolist()),
    }


def run(call: str, t: Any, f: Any, given: dict[str, Any], index: dict[str, Any]) -> Any:
    scope = {"t": t, "f": f, "INF": INF, "NAN": NAN, **given, **index}
    try:
        with np.errstate(all="ignore"):
            out = eval(call, scope)
            return tuple(out) if isinstance(out, (tuple, list)) else (out,)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        return error


def backward(outs: tuple[Any, ...], seed: Any) -> None:
    for out in outs:
        if getattr(out, "requires_grad", False):
            with np.errstate(all="ignore"):
                out.backward(seed(np.arange(1.0, out.numel() + 1).reshape(tuple(out.shape))))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("call", lines(WITHOUT_AXES + WITHOUT_ELEMENTS + AXES + FACTORS))
def test_an_edge_case_call_equals_torch(call: str) -> None:
    torch = pytest.importorskip("torch")
    index = [0, 1]
    mine = inputs(lambda x: autograd.tensor(np.array(x), requires_grad=True))
    mine["n"].data = mine["n"].data.reshape(0, 3)
    other = inputs(lambda x: torch.tensor(np.array(x), requires_grad=True))
    with torch.no_grad():
        other["n"] = torch.zeros(0, 3, dtype=torch.float64).requires_grad_()
    expected = run(
        call,
        torch,
        torch.nn.functional,
        other,
        {"i": torch.tensor(index), "k": torch.tensor(0)},
    )
    found = run(
        call, OURS, nn.functional, mine, {"i": autograd.tensor(index), "k": autograd.tensor(0)}
    )

    if isinstance(expected, Exception):
        assert isinstance(found, (ShapeError, DtypeError, IndexError, ValueError)), found
        if type(expected) is IndexError:
            assert isinstance(found, IndexError), found
        return
    assert not isinstance(found, Exception), found
    for a, b in zip(found, expected, strict=True):
        if isinstance(b, int):
            assert a == b
            continue
        assert tuple(a.shape) == tuple(b.shape)
        assert str(a.dtype) == str(b.dtype).removeprefix("torch.")
        np.testing.assert_allclose(a.data, b.detach().numpy(), rtol=1e-11, atol=1e-12)
    backward(found, lambda seed: seed)
    backward(expected, torch.tensor)
    for name, b in other.items():
        if b.grad is not None:
            np.testing.assert_allclose(mine[name].grad.data, b.grad.numpy(), rtol=1e-10, atol=1e-12)
