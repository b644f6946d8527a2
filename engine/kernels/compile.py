"""How kernels are compiled, and how they prefetch memory.

Kernels run without the GIL, are cached on disk and divide as numpy does. A row at a random address
costs a cache miss. A processor can have many misses in flight, but looks only a few instructions
ahead: a kernel prefetches its next rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gradmesh.engine.kernels.cache import KernelCache

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile a kernel on its first call, or take it from the cache on disk.

    No fast-math: sums keep their order and results are the same on every machine.
    """
    kernel: Any = numba.njit(nogil=True, error_model="numpy")(function)
    # Without a writable folder, as in a read-only container, each process compiles.
    with contextlib.suppress(RuntimeError):
        kernel._cache = KernelCache(function)
    return cast(F, kernel)


def inline(function: F) -> F:
    """Compile a function that kernels call and that is copied into them."""
    return cast(F, numba.njit(nogil=True, inline="always", error_model="numpy")(function))


_BYTE = ir.IntType(8).as_pointer()
_INT = ir.IntType(32)
_LINE = 64


def _prefetch_line(typing: Any, array: Any, row: Any, offset: Any) -> Any:
    """Prefetch the cache line at a byte of a row; nothing is read, so any address is allowed."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held = context.make_array(signature.args[0])(context, builder, arguments[0])
        step = builder.extract_value(held.strides, 0)
        position = builder.add(builder.mul(arguments[1], step), arguments[2])
        pointer = builder.gep(builder.bitcast(held.data, _BYTE), [position])
        kind = ir.FunctionType(ir.VoidType(), [_BYTE, _INT, _INT, _INT])
        function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTE], kind)
        # For reading, in all cache levels, as data.
        builder.call(function, [pointer, *(_INT(number) for number in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate


_line: Any = intrinsic(_prefetch_line)


@inline
def prefetch_row(array: Any, row: Any) -> None:
    """Prefetch a row of a matrix whose rows are contiguous."""
    for offset in range(0, array.shape[1] * array.itemsize, _LINE):
        _line(array, row, offset)
