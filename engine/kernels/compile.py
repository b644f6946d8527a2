"""How kernels are compiled: without the GIL, cached on disk, with numpy's rules for division."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile a kernel on its first call."""
    return _compiled(function, fastmath=False)


def fast_jit(function: F) -> F:
    """Compile a kernel whose sums the compiler may contract (a*b+c), never reorder."""
    return _compiled(function, fastmath={"contract"})


def inline(function: F) -> F:
    """Compile a function that kernels call and that is copied into them."""
    return cast(F, numba.njit(nogil=True, inline="always", error_model="numpy")(function))


def _compiled(function: F, fastmath: Any) -> F:
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return cast(F, numba.njit(cache=True, **options)(function))
    except RuntimeError:
        # numba found no writable place for its cache, as in a read-only container.
        return cast(F, numba.njit(**options)(function))
