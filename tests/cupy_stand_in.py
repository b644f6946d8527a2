"""A numpy-backed stand-in for cupy, to run the `cuda` branches of the engine without a GPU.

No GPU code runs here. Like cupy it refuses implicit conversion to
numpy and numpy arrays as operands, and has the methods and keywords of cupy's arrays.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, final

import numpy as np

from gradmesh.engine.backend.array import view_of

_UNARY = ("neg", "pos", "abs", "invert")
_BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and_", "or_", "xor", "eq", "ne", "lt", "le", "gt", "ge"),
)
_INPLACE = ("iadd", "isub", "imul", "itruediv", "ipow", "iand", "ior")


def _open(value: Any) -> Any:
    """Return arguments for numpy; raise where cupy would."""
    if isinstance(value, StandInArray):
        return value.host
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>: move it to the device first")
    if isinstance(value, (tuple, list)):
        return type(value)([_open(part) for part in value])
    return value


def _close(value: Any) -> Any:
    """Return numpy's results as arrays of the stand-in."""
    if isinstance(value, (np.ndarray, np.generic)):
        return StandInArray(np.asarray(value))
    if isinstance(value, tuple):
        return tuple(_close(part) for part in value)
    return value


@final
class StandInArray:
    """Behave like `cupy.ndarray`, on host memory."""

    __slots__ = ("host",)

    __array_ufunc__ = None

    def __init__(self, host: Any) -> None:
        self.host = host

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __getattr__(self, name: str) -> Any:
        if name in ("dtype", "shape", "ndim", "size", "strides", "itemsize", "flags", "nbytes"):
            return getattr(self.host, name)
        if name in ("T", "base"):
            return _close(getattr(self.host, name))
        if name == "device":
            return SimpleNamespace(id=0)
        raise AttributeError(f"'cupy.ndarray' object has no attribute {name!r}")

    def __getitem__(self, index: Any) -> Any:
        return _close(self.host[_open(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.host[_open(index)] = _open(value)

    def __len__(self) -> int:
        return len(self.host)

    def __iter__(self) -> Iterator[Any]:
        return (_close(part) for part in self.host)

    def __bool__(self) -> bool:
        return bool(self.host)

    def __float__(self) -> float:
        return float(self.host)

    def __int__(self) -> int:
        return int(self.host)

    __hash__ = object.__hash__

    def get(self) -> Any:
        """Return a copy in host memory."""
        return self.host.copy()

    def set(self, host: Any) -> None:
        """Copy from host memory."""
        self.host[...] = host

    def fill(self, value: Any) -> None:
        """Set every element."""
        self.host.fill(_open(value))

    def item(self) -> Any:
        """Return the only element."""
        return self.host.item()

    def tolist(self) -> Any:
        """Return nested lists."""
        return self.host.tolist()

    def copy(self, order: str = "C") -> Any:
        """Return a copy."""
        return _close(self.host.copy(order=order))

    def astype(self, dtype: Any, order: str = "K", copy: bool = True) -> Any:
        """Return the array in a dtype."""
        return _close(self.host.astype(dtype, order=order, copy=copy))

    def reshape(self, *shape: Any) -> Any:
        """Return the array in a shape."""
        return _close(self.host.reshape(*shape))

    def transpose(self, *axes: Any) -> Any:
        """Return the array with its axes in an order."""
        return _close(self.host.transpose(*axes))

    def squeeze(self, axis: Any = None) -> Any:
        """Return the array without axes of length 1."""
        return _close(self.host.squeeze(axis=axis))

    def take(self, indices: Any, axis: Any = None, out: Any = None) -> Any:
        """Return picked elements."""
        return _close(self.host.take(_open(indices), axis=axis, out=_open(out)))

    def sum(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        """Return sums."""
        return _close(self.host.sum(axis=axis, dtype=dtype, out=_open(out), keepdims=keepdims))

    def mean(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        """Return means."""
        return _close(self.host.mean(axis=axis, dtype=dtype, out=_open(out), keepdims=keepdims))

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Return the largest elements."""
        return _close(self.host.max(axis=axis, out=_open(out), keepdims=keepdims))

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Return the smallest elements."""
        return _close(self.host.min(axis=axis, out=_open(out), keepdims=keepdims))

    def argmax(self, axis: Any = None) -> Any:
        """Return where the largest elements are."""
        return _close(self.host.argmax(axis=axis))

    def argmin(self, axis: Any = None) -> Any:
        """Return where the smallest elements are."""
        return _close(self.host.argmin(axis=axis))

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Return whether any element is true."""
        return _close(self.host.any(axis=axis, out=_open(out), keepdims=keepdims))

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Return whether all elements are true."""
        return _close(self.host.all(axis=axis, out=_open(out), keepdims=keepdims))


def _dress(name: str) -> None:
    """Give the array class one operator, and its reflection."""
    function: Callable[..., Any] = getattr(operator, name)
    plain = name.rstrip("_")

    def apply(self: Any, *others: Any) -> Any:
        return _close(function(self.host, *[_open(other) for other in others]))

    def reflected(self: Any, other: Any) -> Any:
        return _close(function(_open(other), self.host))

    def inplace(self: Any, other: Any) -> Any:
        function(self.host, _open(other))
        return self

    setattr(StandInArray, f"__{plain}__", inplace if name in _INPLACE else apply)
    if name in _BINARY and plain not in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(StandInArray, f"__r{plain}__", reflected)


for _name in (*_UNARY, *_BINARY, *_INPLACE):
    _dress(_name)


@final
class _Function:
    """Wrap a numpy function, and a ufunc's reduce and reduceat."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any, **options: Any) -> Any:
        opened = {name: _open(value) for name, value in options.items()}
        result = self._function(*[_open(arg) for arg in args], **opened)
        return options["out"] if options.get("out") is not None else _close(result)

    def __getattr__(self, name: str) -> Any:
        if name not in ("reduce", "reduceat"):
            raise AttributeError(name)
        return _Function(getattr(self._function, name))


@final
class _RawModule:
    """Run the host twins of raw kernels; the genuine sources are compiled by other tests."""

    def __init__(self, code: str) -> None:
        self.code = code

    def get_function(self, name: str) -> Callable[..., None]:
        if f" {name}(" not in self.code:
            raise AttributeError(f"the source defines no kernel {name!r}")
        return _segment_sum


def _segment_sum(grid: Any, block: Any, args: tuple[Any, ...]) -> None:
    rows, order, starts, places, segments, count, dim, out = [_open(arg) for arg in args]
    ends = [*starts[1:], count]
    for s in range(segments):
        for place in order[starts[s] : ends[s]]:
            view_of(out, (-1, dim))[places[s]] += rows.reshape(-1, dim)[place]


@final
class _Device(contextlib.nullcontext[None]):
    """Be a device that has always finished."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(None)
        self.id = index

    def synchronize(self) -> None:
        """Return at once."""


@final
class _Stream(contextlib.AbstractContextManager["_Stream"]):
    """Be a stream that has always finished."""

    def __init__(self, non_blocking: bool = False) -> None:
        self.non_blocking = non_blocking

    def __exit__(self, *exc: object) -> None:
        """Leave the stream."""

    def synchronize(self) -> None:
        """Return at once."""


@final
class StandInModule:
    """Behave like the module cupy."""

    __name__ = "cupy stand-in"

    RawModule = _RawModule
    ndarray = StandInArray
    cuda = SimpleNamespace(Device=_Device, Stream=_Stream, is_available=lambda: True)

    @staticmethod
    def empty_pinned(shape: Any, dtype: Any = float) -> Any:
        """Return host memory, as `cupyx.empty_pinned` does."""
        return np.empty(shape, dtype=dtype)

    @staticmethod
    def asnumpy(array: Any) -> Any:
        """Return a copy in host memory."""
        return array.get() if isinstance(array, StandInArray) else np.array(array)

    @staticmethod
    def asarray(value: Any, dtype: Any = None) -> Any:
        """Return the value on the device, copied if it was on the host."""
        if isinstance(value, StandInArray):
            return value if dtype is None else value.astype(dtype, copy=False)
        return StandInArray(np.array(value, dtype=dtype))

    @property
    def special(self) -> Any:
        """Give the special functions that the engine uses."""
        from gradmesh.engine.kernels import erf

        return SimpleNamespace(erf=_Function(erf))

    def __getattr__(self, name: str) -> Any:
        if not hasattr(np, name):
            raise AttributeError(f"module 'cupy' has no attribute {name!r}")
        return _Function(getattr(np, name))
