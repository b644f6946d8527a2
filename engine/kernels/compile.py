"""How kernels are compiled: without the GIL, cached on disk, with numpy's rules for division."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile a kernel on its first call, or take it from the cache on disk.

    No fast-math: sums keep their order and results are the same on every machine.
    """
    try:
        return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:
        # numba found no writable place for its cache, as in a read-only container.
        return cast(F, numba.njit(nogil=True, error_model="numpy")(function))


def inline(function: F) -> F:
    """Compile a function that kernels call and that is copied into them."""
    return cast(F, numba.njit(nogil=True, inline="always", error_model="numpy")(function))
