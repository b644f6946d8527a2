"""`~ & | ^ % //` on every pair of dtypes: torch's values and dtypes, and what torch refuses."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine.autograd import GradientError
from gradmesh.engine.backend import DtypeError, ShapeError

DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
OPERATORS = ["and_", "or_", "xor", "mod", "floordiv"]
LOGICAL = ["logical_and", "logical_or", "logical_xor"]
LEFT, RIGHT = [7, 0, 9, 100, 3], [3, 4, 2, 7, 5]
NUMBERS = [True, 3, -2, 2.5]


def _values(numbers: list[int], dtype: str) -> Any:
    """Return numbers with some negative ones where the dtype has them."""
    signs = [1, 1, 1, 1, 1] if dtype in ("bool", "uint8") else [1, 1, -1, -1, 1]
    return np.array(numbers) * signs


def _pair(numbers: list[int], dtype: str) -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    values = _values(numbers, dtype)
    return gm.tensor(values).to(dtype), torch.tensor(values).to(getattr(torch, dtype))


def _assert_same(ours: Any, theirs: Any) -> None:
    """Compare the outcomes of a call, each a function; both must fail or neither."""
    try:
        expected = theirs()
    except (RuntimeError, TypeError, NotImplementedError):
        with pytest.raises((DtypeError, ZeroDivisionError)):
            ours()
        return
    found = ours()
    assert str(found.dtype) == str(expected.dtype).removeprefix("torch.")
    np.testing.assert_array_equal(
        found.double().numpy(), expected.double().numpy(), err_msg=str(expected.dtype)
    )


@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("name", [*OPERATORS, *LOGICAL])
def test_operators_of_two_tensors_equal_torch(name: str, first: str) -> None:
    torch = pytest.importorskip("torch")
    is_logical = name in LOGICAL
    ours = getattr(gm.ops, name) if is_logical else getattr(operator, name)
    theirs = getattr(torch, name) if is_logical else ours
    a, peer_a = _pair(LEFT, first)
    for second in DTYPES:
        b, peer_b = _pair(RIGHT, second)
        _assert_same(lambda b=b: ours(a, b), lambda b=peer_b: theirs(peer_a, b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_with_numbers_equal_torch(name: str, dtype: str) -> None:
    call = getattr(operator, name)
    a, peer = _pair(RIGHT, dtype)
    for number in NUMBERS:
        if dtype == "uint8" and number == -2:
            continue  # torch wraps what does not fit, numpy refuses it
        _assert_same(lambda n=number: call(a, n), lambda n=number: call(peer, n))
        if dtype != "bool" or number != 2.5:
            _assert_same(lambda n=number: call(n, a), lambda n=number: call(n, peer))


@pytest.mark.parametrize("dtype", DTYPES)
def test_negations_equal_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    a, peer = _pair(LEFT, dtype)

    _assert_same(lambda: ~a, lambda: ~peer)
    _assert_same(lambda: gm.ops.bitwise_not(a), lambda: torch.bitwise_not(peer))
    _assert_same(lambda: a.logical_not(), lambda: peer.logical_not())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["iand", "ior", "ixor", "imod", "ifloordiv"])
def test_changes_in_place_equal_torch(name: str, dtype: str) -> None:
    call = getattr(operator, name)
    for other in [*NUMBERS[:2], 2.5, "bool", "int32", "float32"]:
        a, peer = _pair(LEFT, dtype)
        before = a.data.copy()
        b, peer_b = _pair(RIGHT, other) if isinstance(other, str) else (other, other)
        try:
            call(peer, peer_b)
        except (RuntimeError, TypeError, NotImplementedError):
            with pytest.raises(DtypeError):
                call(a, b)
            np.testing.assert_array_equal(a.data, before)
            continue
        assert call(a, b) is a
        np.testing.assert_array_equal(a.double().numpy(), peer.double().numpy())


def test_the_remainder_has_the_sign_of_the_divisor() -> None:
    assert (gm.tensor([7, -7, 7, -7]) % gm.tensor([3, 3, -3, -3])).tolist() == [1, 2, -2, -1]
    assert (gm.tensor([7.0, -7.0]) % -3).tolist() == [-2.0, -1.0]
    assert (gm.tensor([7, -7]) // 2).tolist() == [3, -4]
    assert (gm.tensor([7.0, -7.0]) // 2).tolist() == [3.0, -4.0]


@pytest.mark.parametrize("call", [operator.mod, operator.floordiv])
@pytest.mark.parametrize("divisor", [0, gm.tensor([1, 0])])
def test_integers_are_not_divided_by_nothing(call: Any, divisor: Any) -> None:
    with pytest.raises(ZeroDivisionError, match=r"remainder|floor_divide"):
        call(gm.tensor([1, 2]), divisor)
    assert call(gm.tensor([], dtype="int64"), 1).shape == (0,)


def test_floor_division_has_no_derivative_and_says_so() -> None:
    x = gm.tensor([3.0], requires_grad=True)

    with pytest.raises(GradientError, match="floor_divide has no derivative"):
        (x // 2).backward()


def test_a_remainder_in_place_is_recorded() -> None:
    x, y = (gm.tensor(v, requires_grad=True) for v in ([7.0, -7.0], [2.0, 3.0]))
    z = x * 1
    z %= y
    z.sum().backward()

    assert x.grad.tolist() == [1.0, 1.0]
    assert y.grad.tolist() == [-3.0, 3.0]


def test_logical_ops_carry_no_gradient() -> None:
    x = gm.tensor([0.0, 2.0], requires_grad=True)

    for out in (x.logical_not(), x.logical_and(x), gm.ops.logical_xor(x, 1)):
        assert not out.requires_grad
        assert out.dtype == np.bool_


def test_masks_are_made_of_comparisons() -> None:
    x = gm.tensor([-2.0, 0.5, 3.0])

    assert ((x > -1) & ~(x > 1)).tolist() == [False, True, False]
    assert ((x < -1) | (x > 1)).tolist() == [True, False, True]
    assert x[(x > 0) ^ (x > 1)].tolist() == [0.5]


def test_arguments_that_do_not_fit_are_named() -> None:
    x = gm.tensor([1, 2])

    with pytest.raises(ShapeError, match="bitwise_and"):
        x & gm.tensor([1, 2, 3])
    with pytest.raises(ShapeError, match="floor_divide"):
        x // gm.tensor([1, 2, 3])
    with pytest.raises(DtypeError, match=r"remainder: takes tensors and numbers, not str"):
        x % "3"
    with pytest.raises(DtypeError, match="bitwise_or: takes tensors and numbers, not list"):
        x | [1, 2]
    with pytest.raises(DtypeError, match="not two numbers"):
        gm.ops.remainder(7, 2)
    with pytest.raises(DtypeError, match="bitwise_not: takes integers and bool, not float32"):
        ~gm.ones(2)
    with pytest.raises(DtypeError, match="remainder: takes integers and floats, not bool"):
        gm.tensor([True]) % gm.tensor([True])
