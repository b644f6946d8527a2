"""Array backend: devices, dtypes, the array module, random numbers.

Everything above asks `array_module(x)` for `xp` once and never names numpy or cupy in an op.
"""

from gradmesh.engine.backend.array import CPU as CPU
from gradmesh.engine.backend.array import Array as Array
from gradmesh.engine.backend.array import Device as Device
from gradmesh.engine.backend.array import array_module as array_module
from gradmesh.engine.backend.array import as_array as as_array
from gradmesh.engine.backend.array import as_device as as_device
from gradmesh.engine.backend.array import device_of as device_of
from gradmesh.engine.backend.array import is_plain as is_plain
from gradmesh.engine.backend.array import to_device as to_device
from gradmesh.engine.backend.array import to_numpy as to_numpy
from gradmesh.engine.backend.array import view_of as view_of
from gradmesh.engine.backend.blas import get_num_threads as get_num_threads
from gradmesh.engine.backend.blas import pin_blas_threads as pin_blas_threads
from gradmesh.engine.backend.blas import set_blas as set_blas
from gradmesh.engine.backend.blas import set_num_threads as set_num_threads
from gradmesh.engine.backend.blas import use_blas as use_blas
from gradmesh.engine.backend.memory import copy_rows as copy_rows
from gradmesh.engine.backend.memory import empty_pinned as empty_pinned
from gradmesh.engine.backend.memory import keep_freed_pages as keep_freed_pages
from gradmesh.engine.backend.memory import stream as stream
from gradmesh.engine.backend.memory import synchronize as synchronize
from gradmesh.engine.backend.random import Generator as Generator
from gradmesh.engine.backend.random import default_generator as default_generator
from gradmesh.engine.backend.random import manual_seed as manual_seed
from gradmesh.engine.errors import DeviceError as DeviceError
from gradmesh.engine.errors import DeviceUnavailable as DeviceUnavailable
from gradmesh.engine.errors import DimError as DimError
from gradmesh.engine.errors import DtypeError as DtypeError
from gradmesh.engine.errors import ShapeError as ShapeError

__all__ = [
    "CPU",
    "Array",
    "Device",
    "DeviceError",
    "DeviceUnavailable",
    "DimError",
    "DtypeError",
    "Generator",
    "ShapeError",
    "array_module",
    "as_array",
    "as_device",
    "copy_rows",
    "default_generator",
    "device_of",
    "empty_pinned",
    "get_num_threads",
    "is_plain",
    "keep_freed_pages",
    "manual_seed",
    "pin_blas_threads",
    "set_blas",
    "set_num_threads",
    "stream",
    "synchronize",
    "to_device",
    "to_numpy",
    "use_blas",
    "view_of",
]

pin_blas_threads()
