"""Atomic operations on words of shared memory, for compiled code.

The compiler may move plain loads out of a loop, so waiting on memory needs these.
All operations are sequentially consistent; addresses are integers.
"""

import platform
from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_MACHINE = platform.machine()

# Numbers of the futex(2) system call.
_FUTEX: Final = {"x86_64": 202, "aarch64": 98}
FUTEX: Final = _FUTEX.get(_MACHINE, -1)
"""Number of the futex system call; -1 on other architectures."""


def _intrinsic(function: Callable[..., Any]) -> Any:
    """Declare a typed numba intrinsic: the function returns a signature and a code generator."""
    return intrinsic(function)


@_intrinsic
def load(typing: Any, address: Any) -> Any:
    """Return the word at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.load_atomic(pointer, "seq_cst", 8)

    return types.int64(types.int64), generate


@_intrinsic
def store(typing: Any, address: Any, value: Any) -> Any:
    """Store a value into the word at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store_atomic(arguments[1], pointer, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def add(typing: Any, address: Any, value: Any) -> Any:
    """Add to the word at an address; return what it was before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def relax(typing: Any) -> Any:
    """Hint the processor that this is a spin-wait."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _MACHINE == "x86_64":
            kind = ir.FunctionType(ir.VoidType(), ())
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        return context.get_dummy_value()

    return types.void(), generate


@_intrinsic
def pointer(typing: Any, address: Any, like: Any) -> Any:
    """Return an address as a pointer to elements of the type that `like` has."""
    kind: Any = types.CPointer(like.dtype)  # type: ignore[no-untyped-call]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return kind(types.int64, like), generate


syscall: Any = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))
sched_yield: Any = types.ExternalFunction("sched_yield", types.int32())
