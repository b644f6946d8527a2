"""NCCL without a GPU: the genuine cupy binding over a stand-in library, arrays in host memory.

No GPU code runs here. Tested is our own code: pointers, counts, numbers of types and ops,
groups of calls, order on the stream, the watchdog with its abort, and the binding's own checks.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

from gradmesh.trainer.process_group import NcclProcessGroup

SOURCE = Path(__file__).with_name("nccl") / "stand_in.c"


def _build():
    """Return the library's path, compiled once for each version of its source."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"gradmesh-nccl-{os.getuid()}-{digest}"
    library = folder / "libnccl.so.2"
    if not library.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        new = folder / f"new-{os.getpid()}"
        flags = ["-O1", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-lpthread"]
        subprocess.run(["gcc", "-o", new, SOURCE, *flags], check=True, timeout=120)
        new.rename(library)
    return library


def _load():
    """Return the library and None, or None and why it is missing.

    The loader takes the first library of that name, so ours is loaded before cupy loads one.
    """
    if shutil.which("gcc") is None:
        return None, "no gcc to compile the stand-in of NCCL with"
    if "cupy_backends.cuda.libs.nccl" in sys.modules:
        return None, "cupy has looked for NCCL before this test could"
    try:
        import importlib.util

        if importlib.util.find_spec("cupy") is None:
            return None, "cupy is not installed: make parity-setup"
    except ImportError:
        return None, "cupy is not installed: make parity-setup"
    library = ctypes.CDLL(str(_build()), mode=ctypes.RTLD_GLOBAL)
    library.gm_stream_create.restype = ctypes.c_void_p
    for name in ("gm_stream_enqueued", "gm_stream_completed", "gm_stream_close"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
        getattr(library, name).restype = ctypes.c_long
    library.gm_set_async_error.argtypes = [ctypes.c_void_p, ctypes.c_int]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from cupy.cuda import nccl
    if not nccl.available or nccl.get_version() != 22707:
        return None, "cupy has loaded another NCCL"
    return library, None


LIBRARY, WHY_NOT = _load()


class HostEvent:
    def __init__(self, pointer):
        self._pointer = pointer
        self._target = LIBRARY.gm_stream_enqueued(pointer)

    def is_done(self):
        return LIBRARY.gm_stream_completed(self._pointer) >= self._target


class HostStream:
    """A stream of the stand-in; numpy does the work when the result is read."""

    def __init__(self):
        self._pointer = LIBRARY.gm_stream_create()
        self._token = np.zeros(1, np.int32)
        self._later = []
        self.order = []

    @property
    def pointer(self):
        return self._pointer

    @property
    def token(self):
        return self._token.ctypes.data

    def wait_for_caller(self):
        self.order.append("wait for caller")

    def record_event(self):
        self.order.append("event")
        return HostEvent(self._pointer)

    def make_caller_wait(self, event):
        assert event.is_done()
        self.order.append("make caller wait")
        for array, flat in self._later:
            host(array)[...] = host(flat).reshape(array.shape)
        self._later.clear()

    def contiguous(self, array):
        return array if array.flags.c_contiguous else device(np.ascontiguousarray(host(array)))

    def put_back(self, array, flat):
        # On a GPU the stream copies after the collective; here the waiting thread does.
        if flat.data.ptr != array.data.ptr:
            self._later.append((array, flat))

    def empty(self, shape, dtype):
        return device(np.empty(shape, dtype))

    def is_array(self, value):
        import cupy

        return isinstance(value, cupy.ndarray)

    def use_device(self):
        self.order.append("use")

    def new_stream(self):
        return HostStream()

    def close(self):
        LIBRARY.gm_stream_close(self._pointer)


def device(array):
    """Return a cupy array over a numpy array's memory, or the array if cupy lacks its type."""
    import cupy

    if not isinstance(array, np.ndarray) or array.dtype.kind == "O" or array.dtype.str[0] == ">":
        return array
    if not array.flags.writeable:
        return [array]
    memory = cupy.cuda.UnownedMemory(array.ctypes.data, _extent(array), array, 0)
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    return cupy.ndarray(array.shape, array.dtype, pointer, array.strides)


def host(array):
    """Return a numpy array over the memory of a cupy array that `device` made."""
    buffer = (ctypes.c_char * _extent(array)).from_address(array.data.ptr)
    return np.ndarray(array.shape, array.dtype, buffer, 0, array.strides)


def _extent(array):
    """Return how many bytes lie between the first and the last element."""
    if array.size == 0:
        return 1
    steps = zip(array.shape, array.strides, strict=True)
    return sum((n - 1) * stride for n, stride in steps) + array.dtype.itemsize


class NcclOnHost:
    """A NcclProcessGroup that takes numpy arrays, by wrapping them."""

    def __init__(self, group):
        self.group = group
        self._kept = []

    @classmethod
    def connect(cls, store, *, generation, rank, world_size, timeout_s):
        return cls(
            NcclProcessGroup.connect(
                store,
                rank=rank,
                world_size=world_size,
                timeout_s=timeout_s,
                stream=HostStream(),
            )
        )

    def sub_group(self, ranks):
        part = self.group.sub_group(ranks)
        return None if part is None else NcclOnHost(part)

    def empty(self, shape, dtype):
        self._kept.append(self.group.empty(shape, dtype))
        return host(self._kept[-1])

    def __enter__(self):
        self.group.__enter__()
        return self

    def __exit__(self, *error):
        self.group.__exit__(*error)

    def __getattr__(self, name):
        member = getattr(self.group, name)
        return _wrapped(member) if callable(member) else member


def _wrapped(method):
    def call(*arguments):
        return method(*map(_on_device, arguments))

    return call


def _on_device(value):
    if isinstance(value, list):
        return [_on_device(item) for item in value]
    return device(value)
