"""Logical and bitwise ops; none has a gradient."""

from __future__ import annotations

from typing import Any

import gradmesh.engine.autograd.tensor as tensor_module
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.arguments import check_operands
from gradmesh.engine.autograd.ops.broadcast import align
from gradmesh.engine.backend import Array, DtypeError, array_module
from gradmesh.engine.backend.dtype import FLOATS


class _Bitwise(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, name: str) -> Array:
        a, b = align(name, a, b)
        array = a if hasattr(a, "strides") else b
        if array.dtype in FLOATS:
            raise _not_bits(name, array.dtype)
        return getattr(array_module(array), name)(a, b)


class _BitwiseNot(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        if x.dtype in FLOATS:
            raise _not_bits("bitwise_not", x.dtype)
        return array_module(x).invert(x)


class _Logical(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, name: str) -> Array:
        a, b = align(name, a, b)
        array = a if hasattr(a, "strides") else b
        return getattr(array_module(array), name)(a, b)


class _LogicalNot(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        return array_module(x).logical_not(x)


def _not_bits(name: str, dtype: Any) -> DtypeError:
    return DtypeError(f"{name}: takes integers and bool, not {dtype}")


def _constant(operand: Any) -> Any:
    """Return an operand without its history: bools have no gradient."""
    return operand.detach() if isinstance(operand, tensor_module.Tensor) else operand


def _bitwise(name: str, a: Any, b: Any) -> Any:
    check_operands(name, a, b)
    return _Bitwise.apply(_constant(a), _constant(b), name)


def _logical(name: str, a: Any, b: Any) -> Any:
    check_operands(name, a, b)
    return _Logical.apply(_constant(a), _constant(b), name)


def bitwise_and(a: Any, b: Any) -> Any:
    """Return a & b: bitwise for integers, logical for bools."""
    return _bitwise("bitwise_and", a, b)


def bitwise_or(a: Any, b: Any) -> Any:
    """Return a | b: bitwise for integers, logical for bools."""
    return _bitwise("bitwise_or", a, b)


def bitwise_xor(a: Any, b: Any) -> Any:
    """Return a ^ b: bitwise for integers, logical for bools."""
    return _bitwise("bitwise_xor", a, b)


def bitwise_not(x: Any) -> Any:
    """Return ~x: bitwise for integers, logical for bools."""
    return _BitwiseNot.apply(_constant(x))


def logical_and(a: Any, b: Any) -> Any:
    """Return for each element whether both a and b are true (non-zero)."""
    return _logical("logical_and", a, b)


def logical_or(a: Any, b: Any) -> Any:
    """Return for each element whether a or b is true (non-zero)."""
    return _logical("logical_or", a, b)


def logical_xor(a: Any, b: Any) -> Any:
    """Return for each element whether exactly one of a and b is true (non-zero)."""
    return _logical("logical_xor", a, b)


def logical_not(x: Any) -> Any:
    """Return for each element whether x is false (zero)."""
    return _LogicalNot.apply(_constant(x))
