"""Dtypes of results: torch's table, for all pairs of dtypes, tensors without axes and numbers."""

import itertools
import operator
import warnings
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine import autograd, nn
from gradmesh.engine.autograd import ops
from gradmesh.engine.backend import DtypeError, ShapeError
from gradmesh.engine.backend.dtype import bfloat16
from tests.op_namespace import FUNCTIONS

DTYPES = [
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
]
NUMBERS: list[Any] = [True, False, 3, -2, 300, 1.5]
OURS = SimpleNamespace(**{**vars(ops), **vars(autograd)})

BINARY = {
    "add": lambda t, a, b: a + b,
    "sub": lambda t, a, b: a - b,
    "mul": lambda t, a, b: a * b,
    "div": lambda t, a, b: a / b,
    "pow": lambda t, a, b: a**b,
    "eq": lambda t, a, b: a == b,
    "ne": lambda t, a, b: a != b,
    "lt": lambda t, a, b: a < b,
    "le": lambda t, a, b: a <= b,
    "gt": lambda t, a, b: a > b,
    "ge": lambda t, a, b: a >= b,
    "maximum": lambda t, a, b: t.maximum(a, b),
    "minimum": lambda t, a, b: t.minimum(a, b),
    "where": lambda t, a, b: t.where(t.tensor([True, False, True]), a, b),
    "clamp-min": lambda t, a, b: a.clamp(min=b),
    "clamp-max": lambda t, a, b: a.clamp(max=b),
    "cat": lambda t, a, b: t.cat([a, b]),
    "stack": lambda t, a, b: t.stack([a, b]),
}
INPLACE = {
    "iadd": lambda t, a, b: a.add_(b),
    "isub": lambda t, a, b: a.sub_(b),
    "imul": lambda t, a, b: a.mul_(b),
    "idiv": lambda t, a, b: a.div_(b),
    "ipow": lambda t, a, b: operator.ipow(a, b),
}
POWERS = {"pow", "ipow"}
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
# What torch refuses and the engine takes: maximum of a number, clamp of bools.
WIDER = {"maximum", "minimum", "clamp-min", "clamp-max"}


def values(dtype: str, axes: int) -> Any:
    given = [2.0, 1.0, 3.0] if axes else 2.0
    return np.array(given).astype(bfloat16 if dtype == "bfloat16" else dtype)


def theirs(torch: Any, dtype: str, axes: int) -> Any:
    return torch.tensor([2, 1, 3] if axes else 2).to(getattr(torch, dtype))


def outcome(call: Any, t: Any, a: Any, b: Any) -> Any:
    try:
        with np.errstate(all="ignore"):
            return call(t, a, b)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        return error


def check(name: str, found: Any, expected: Any, label: str) -> None:
    if isinstance(expected, Exception):
        if isinstance(found, Exception):
            assert isinstance(found, (DtypeError, ShapeError, TypeError)), (label, found)
        else:
            # A Python True is the number 1, also in a difference.
            known = name in WIDER or (name in ("sub", "isub") and "bool" not in label)
            assert known, (label, found, expected)
        return
    assert not isinstance(found, Exception), (label, found)
    assert str(found.dtype) == str(expected.dtype).removeprefix("torch."), (label, found, expected)
    loose = {"float16": 2e-3, "bfloat16": 2e-2}.get(str(found.dtype), 1e-6)
    np.testing.assert_allclose(
        found.data.astype("float64"), expected.double().numpy(), rtol=loose, err_msg=label
    )


@pytest.mark.parametrize("name", [*BINARY, *INPLACE])
def test_two_tensors_give_dtype_and_value_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    call = {**BINARY, **INPLACE}[name]
    for left, right in itertools.product(DTYPES, DTYPES):
        for m, n in ((1, 1), (1, 0), (0, 1), (0, 0)):
            if name in INPLACE and m < n:
                continue
            label = f"{name}: {left}[{m}] {right}[{n}]"
            a, b = autograd.tensor(values(left, m)), autograd.tensor(values(right, n))
            found = outcome(call, OURS, a, b)
            expected = outcome(call, torch, theirs(torch, left, m), theirs(torch, right, n))
            if name in POWERS and "bool" in (left, right) and isinstance(found, DtypeError):
                assert (left, "bool" if name == "ipow" else right) == ("bool", "bool"), label
                continue
            check(name, found, expected, label)


@pytest.mark.parametrize("name", [n for n in [*BINARY, *INPLACE] if n not in ("cat", "stack")])
def test_a_tensor_and_a_number_give_dtype_and_value_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    call = {**BINARY, **INPLACE}[name]
    for dtype, number, axes in itertools.product(DTYPES, NUMBERS, (1, 0)):
        kind = np.dtype(values(dtype, 0).dtype).kind
        if name in COMPARISONS and kind in "iu" and number in (-2, 300):
            continue  # exact here, wrapped around in torch
        if kind in "iu" and name.startswith("clamp") and number in (-2, 300):
            continue  # the end of the dtype's range here, wrapped around in torch
        if (name in POWERS and number == 300) or (name, number) == ("where", -2):
            continue  # a power beyond the range; torch takes -2 for 254 beside uint8
        for turned in (False, True):
            if turned and (name in INPLACE or name.startswith("clamp")):
                continue
            label = f"{name}: {dtype}[{axes}] {number} {turned}"
            mine: list[Any] = [autograd.tensor(values(dtype, axes)), number]
            other: list[Any] = [theirs(torch, dtype, axes), number]
            if turned:
                mine.reverse()
                other.reverse()
            found = outcome(call, OURS, *mine)
            expected = outcome(call, torch, *other)
            if name in POWERS and dtype == "bool" and isinstance(found, DtypeError):
                continue  # torch takes some of these powers of bools
            check(name, found, expected, label)


@pytest.mark.parametrize("name", ["add", "mul", "div"])
def test_a_numpy_scalar_counts_as_a_number(name: str) -> None:
    torch = pytest.importorskip("torch")
    scalars = [np.int8(3), np.int64(3), np.float16(1.5), np.float32(1.5), np.float64(1.5)]
    for dtype, scalar, axes in itertools.product(DTYPES, scalars, (1, 0)):
        label = f"{name}: {dtype}[{axes}] {scalar!r}"
        found = BINARY[name](OURS, autograd.tensor(values(dtype, axes)), scalar)
        check(name, found, BINARY[name](torch, theirs(torch, dtype, axes), scalar), label)


CHECKED = {
    "where": lambda t, x, number: t.where(x > 1, x, number),
    "masked_fill": lambda t, x, number: x.masked_fill(x > 1, number),
    "full": lambda t, x, number: t.full((2,), number, dtype=t.int8),
    "fill_": lambda t, x, number: x.fill_(number),
    "setitem": lambda t, x, number: operator.setitem(x, 0, number),
}


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("number", [300, np.int64(300)])
def test_a_number_that_the_dtype_cannot_hold_is_refused(name: str, number: Any) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError):
        CHECKED[name](torch, torch.tensor([1, 2], dtype=torch.int8), number)

    with pytest.raises((DtypeError, OverflowError)):
        CHECKED[name](FUNCTIONS, gm.tensor([1, 2], dtype="int8"), number)


def test_a_bound_beyond_the_dtype_is_its_end() -> None:
    x = autograd.tensor(values("int8", 1))

    assert x.clamp(max=np.int64(300)).tolist() == x.tolist()
    assert x.clamp(min=np.int64(300)).tolist() == [127] * 3


def test_a_numpy_scalar_beyond_the_dtype_is_compared_exactly() -> None:
    x = autograd.tensor(values("int8", 1))

    assert (x < np.int64(300)).all()
    assert not (x == np.int16(256 + 2)).any()


FLOAT_VALUED = ["exp", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos"]
FLOAT_VALUED += ["sigmoid", "tanh"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_one_operand_have_the_dtype_of_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    for axes in (0, 1):
        x, y = autograd.tensor(values(dtype, axes)), theirs(torch, dtype, axes)
        calls = {
            **{name: lambda t, f, z, n=name: getattr(z, n)() for name in FLOAT_VALUED},
            **{
                name: lambda t, f, z, n=name: getattr(z, n)()
                for name in ("abs", "neg", "square", "relu", "sum", "mean", "var", "std", "norm")
            },
            **{
                name: lambda t, f, z, n=name: getattr(z, n)(0)
                for name in ("softmax", "log_softmax", "logsumexp", "cumsum")
            },
            **{
                name: lambda t, f, z, n=name: getattr(f, n)(z)
                for name in ("gelu", "silu", "softplus", "leaky_relu")
            },
            "any": lambda t, f, z: z.any().bool(),
            "all": lambda t, f, z: z.all().bool(),
            "max": lambda t, f, z: z.max(),
            "max-dim": lambda t, f, z: z.max(0).indices,
        }
        for name, call in calls.items():
            found = outcome(lambda t, z, f, call=call: call(t, f, z), OURS, x, nn.functional)
            with pytest.warns() if name in ("var", "std") and not axes else nullcontext():
                expected = outcome(
                    lambda t, z, f, call=call: call(t, f, z), torch, y, torch.nn.functional
                )
                if name in ("var", "std") and not axes:
                    warnings.warn("so that there is one for integers too", stacklevel=1)
            check(name, found, expected, f"{name} {dtype}[{axes}]")
