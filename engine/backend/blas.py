"""Which library multiplies matrices, and on how many threads.

A product must not depend on the number of threads, and OpenBLAS splits its sums by them. So the
libraries run on one thread each, and big products are cut here into blocks of rows of a fixed size,
which a pool of threads shares. numpy's own library is the default; MKL, from its wheel, is called
through ctypes.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from gradmesh.base_error import GradmeshError
from gradmesh.engine.backend.array import Array, array_module, is_plain
from gradmesh.engine.backend.dtype import bfloat16

_ROW_MAJOR = 101
_NOT_TRANSPOSED = 111
_TRANSPOSED = 112
# Below this many multiplications a call through ctypes costs more than MKL saves.
_WORTH_CALL = 1 << 18
# Below this many multiplications cutting into blocks costs more than threads save.
_WORTH_BLOCKS = 1 << 24
_BLOCK_ROWS = 512


class BlasUnavailable(RuntimeError, GradmeshError):
    """A matrix library is not installed."""


class _BlasState:
    """Keep the library in use, None for numpy's own, and the threads that share blocks."""

    __slots__ = ("library", "pool", "threads")

    def __init__(self) -> None:
        self.library: Any = None
        self.pool: ThreadPoolExecutor | None = None
        self.threads = 1


_state = _BlasState()


def matmul(a: Array, b: Array) -> Array:
    """Return the product of two matrices (or stacks of them), by the library in use."""
    if not is_plain(a):
        return _rounded(a, b) if isinstance(a, np.ndarray) else array_module(a).matmul(a, b)
    if a.ndim != 2 or b.ndim != 2:
        return np.matmul(a, b)
    work = a.size * b.shape[1]
    if work < _WORTH_CALL:
        # The same product as np.matmul, at half its fixed cost.
        return a.dot(b)
    out = np.empty((a.shape[0], b.shape[1]), dtype=np.result_type(a, b))
    if work < _WORTH_BLOCKS or a.shape[0] <= _BLOCK_ROWS:
        _multiply(a, b, out)
        return out
    starts = range(0, a.shape[0], _BLOCK_ROWS)
    blocks = [slice(start, start + _BLOCK_ROWS) for start in starts]
    if _state.pool is None:
        for block in blocks:
            _multiply(a[block], b, out[block])
    else:
        list(_state.pool.map(lambda block: _multiply(a[block], b, out[block]), blocks))
    return out


def _rounded(a: Array, b: Array) -> Array:
    """Multiply in float32 what has half precision, and round once; integers as they are."""
    dtype = np.result_type(a, b)
    if dtype not in (np.float16, bfloat16):
        return np.matmul(a, b)
    return matmul(a.astype(np.float32), b.astype(np.float32)).astype(dtype)


@contextlib.contextmanager
def use_blas(name: str) -> Iterator[None]:
    """Multiply matrices by another library inside the block, in all threads.

    Args:
        name: `"numpy"` or `"mkl"`.

    Raises:
        BlasUnavailable: If the library is not installed.
    """
    before = _state.library
    _state.library = _load(name)
    try:
        yield
    finally:
        _state.library = before


def set_blas(name: str) -> None:
    """Multiply matrices by another library from now on; arguments as in `use_blas`."""
    _state.library = _load(name)


def set_num_threads(count: int) -> None:
    """Set how many threads share a big product; results are the same for any number."""
    if count < 1:
        raise ValueError(f"{count} threads; one is the least")
    before = _state.pool
    _state.pool = ThreadPoolExecutor(count, "gradmesh-blas") if count > 1 else None
    _state.threads = count
    if before is not None:
        before.shutdown()


def get_num_threads() -> int:
    """Return how many threads share a big product."""
    return _state.threads


def pin_blas_threads() -> None:
    """Keep numpy's matrix library on one thread; the engine does so when it is imported."""
    for path in Path(np.__file__).parent.parent.glob("numpy.libs/*openblas*"):
        library = ctypes.CDLL(str(path))
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(1)
                break


def _load(name: str) -> Any:
    if name == "numpy":
        return None
    if name != "mkl":
        raise ValueError(f"no matrix library {name!r}; use 'numpy' or 'mkl'")
    found = sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))
    if not found:
        raise BlasUnavailable("MKL is not installed here: install gradmesh[mkl]")
    library = ctypes.CDLL(str(found[-1]))
    # Before the first call: 1 is the sequential layer, which needs no OpenMP runtime.
    library.MKL_Set_Threading_Layer(1)
    return library


def _multiply(a: Array, b: Array, out: Array) -> None:
    library = _state.library
    if library is None or not is_plain(a) or a.dtype != b.dtype:
        np.matmul(a, b, out=out)
        return
    a, transpose_a, stride_a = _layout(a)
    b, transpose_b, stride_b = _layout(b)
    single = out.dtype.char == "f"
    number = ctypes.c_float if single else ctypes.c_double
    function = library.cblas_sgemm if single else library.cblas_dgemm
    function(
        _ROW_MAJOR,
        transpose_a,
        transpose_b,
        out.shape[0],
        out.shape[1],
        a.shape[1],
        number(1),
        ctypes.c_void_p(a.ctypes.data),
        stride_a,
        ctypes.c_void_p(b.ctypes.data),
        stride_b,
        number(0),
        ctypes.c_void_p(out.ctypes.data),
        out.shape[1],
    )


def _layout(matrix: Array) -> tuple[Array, int, int]:
    """Return the matrix as BLAS takes it, whether it is transposed, and its leading dimension."""
    down, across = (step // matrix.itemsize for step in matrix.strides)
    if across == 1 and down >= matrix.shape[1]:
        return matrix, _NOT_TRANSPOSED, down
    if down == 1 and across >= matrix.shape[0]:
        return matrix, _TRANSPOSED, across
    return np.ascontiguousarray(matrix), _NOT_TRANSPOSED, matrix.shape[1]
