"""The only module that imports cupy.

Tests replace cupy by a numpy-backed stand-in, with `stand_in`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gradmesh.engine.errors import DeviceUnavailable


class _CudaState:
    """Keep the module that serves `cuda` devices, once it is known."""

    __slots__ = ("functions", "module")

    def __init__(self) -> None:
        self.module: Any = None
        self.functions: dict[str, Any] = {}


_state = _CudaState()


def cuda_module() -> Any:
    """Return cupy, importing it on first use.

    Raises:
        DeviceUnavailable: If cupy is not installed or finds no CUDA device.
    """
    if _state.module is None:
        _state.module = _import_cupy()
    return _state.module


def is_available() -> bool:
    """Return whether a `cuda` device can be used in this process."""
    try:
        cuda_module()
    except DeviceUnavailable:
        return False
    return True


@contextlib.contextmanager
def stand_in(module: Any) -> Iterator[None]:
    """Serve `cuda` devices from another module with cupy's interface, for tests."""
    before = _state.module, _state.functions
    _state.module, _state.functions = module, {}
    try:
        yield
    finally:
        _state.module, _state.functions = before


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise DeviceUnavailable(
            "device 'cuda' needs cupy: install gradmesh[cuda13] or gradmesh[cuda12]"
        ) from error
    # getDeviceCount raises without a driver; is_available answers.
    if not cupy.cuda.is_available():
        raise DeviceUnavailable("device 'cuda' is not available: cupy finds no CUDA driver or GPU")
    return cupy


def raw_function(source: str, name: str) -> Any:
    """Return a kernel from CUDA C source, compiled once in this process."""
    function = _state.functions.get(name)
    if function is None:
        function = cuda_module().RawModule(code=source).get_function(name)
        _state.functions[name] = function
    return function


def special_module() -> Any:
    """Return cupy's special functions, `cupyx.scipy.special`."""
    held = cuda_module()
    if held.__name__ != "cupy":
        return held.special
    import cupyx.scipy.special

    return cupyx.scipy.special


def pinned_module() -> Any:
    """Return the module with `empty_pinned`, `cupyx`."""
    held = cuda_module()
    if held.__name__ != "cupy":
        return held
    import cupyx

    return cupyx
