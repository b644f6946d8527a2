"""The op suite: Functions of one operand, activations among them."""

from __future__ import annotations

from tests.unit.engine.cases.case import Case, distinct, normal, positive

CASES = [
    Case("exp", lambda t, f, a: a.exp(), normal((3, 5))),
    Case("log", lambda t, f, a: a.log(), positive((3, 5))),
    Case("sqrt", lambda t, f, a: a.sqrt(), positive((3, 5))),
    Case("abs", lambda t, f, a: a.abs(), distinct((3, 5))),
    Case("clamp", lambda t, f, a: a.clamp(-0.5, 0.6), distinct((3, 5))),
    Case("clamp-min", lambda t, f, a: a.clamp(min=0.11), distinct((3, 5))),
    Case("relu", lambda t, f, a: f.relu(a), distinct((3, 5))),
    Case("sigmoid", lambda t, f, a: t.sigmoid(a), normal((3, 5))),
    Case("tanh", lambda t, f, a: t.tanh(a), normal((3, 5))),
    Case("silu", lambda t, f, a: f.silu(a), normal((3, 5))),
    Case("gelu", lambda t, f, a: f.gelu(a), normal((3, 5))),
    Case("gelu-tanh", lambda t, f, a: f.gelu(a, approximate="tanh"), normal((3, 5))),
    Case("softmax", lambda t, f, a: f.softmax(a, dim=1), normal((3, 5, 2))),
    Case("log-softmax", lambda t, f, a: f.log_softmax(a, dim=-1), normal((3, 5))),
    Case("softplus", lambda t, f, x: f.softplus(x), normal((3, 5))),
    Case("leaky-relu", lambda t, f, x: f.leaky_relu(x, 0.1), distinct((3, 5))),
    Case("log1p", lambda t, f, x: x.log1p(), positive((3, 5))),
    Case("sin", lambda t, f, x: x.sin(), normal((3, 5))),
    Case("cos", lambda t, f, x: x.cos(), normal((3, 5))),
    Case("erf", lambda t, f, x: x.erf(), normal((3, 5))),
    Case("erf-no-axes", lambda t, f, x: t.erf(x), normal(())),
    Case("erf-empty", lambda t, f, x: t.erf(x), normal((0, 5))),
]
