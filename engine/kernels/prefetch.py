"""Fetching memory into the cache ahead of its use, for compiled code.

Rows at random places cost a miss each. A processor has many misses under way at once, but looks
only so far ahead by itself: a kernel that knows its next places names them in time.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gradmesh.engine.kernels.compile import inline

_BYTE = ir.IntType(8).as_pointer()
_INT = ir.IntType(32)
_LINE = 64


def _fetch_line(typing: Any, array: Any, row: Any, offset: Any) -> Any:
    """Ask for the cache line at a byte of a row; nothing is read, so any place may be named."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held = context.make_array(signature.args[0])(context, builder, arguments[0])
        step = builder.extract_value(held.strides, 0)
        place = builder.add(builder.mul(arguments[1], step), arguments[2])
        pointer = builder.gep(builder.bitcast(held.data, _BYTE), [place])
        kind = ir.FunctionType(ir.VoidType(), [_BYTE, _INT, _INT, _INT])
        function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTE], kind)
        # To read, to be kept in all caches, as data.
        builder.call(function, [pointer, *(_INT(number) for number in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate


_line: Any = intrinsic(_fetch_line)


@inline
def fetch_row(array: Any, row: Any) -> None:
    """Ask for a row of a matrix whose rows are contiguous."""
    for offset in range(0, array.shape[1] * array.itemsize, _LINE):
        _line(array, row, offset)
