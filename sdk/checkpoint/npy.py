"""Headers of numpy's .npy format, read without evaluating them, and arrays mapped from files.

numpy's own reader takes the length of a header from the file, reads as many bytes, and evaluates
them as a Python literal. A header here has at most a few hundred bytes and one form.
"""

import math
import os
import re
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, final

import numpy as np

from gradmesh.protos.frame import Array
from gradmesh.sdk.process.bounded_file import open_regular

_MAGIC: Final = b"\x93NUMPY"
_MAX_HEADER_BYTES: Final = 4096
_MAX_AXES: Final = 8
_MAX_BYTES: Final = 1 << 62
# Bytes of the length field by version.
_LENGTH_BYTES: Final = {(1, 0): 2, (2, 0): 4}
_HEADER: Final = re.compile(
    rb"\{\s*'descr':\s*'(?P<dtype>[<>=|][biuf]\d{1,2})',"
    rb"\s*'fortran_order':\s*(?P<fortran>True|False),"
    rb"\s*'shape':\s*\((?P<shape>[0-9, ]*)\),?\s*\}\s*"
)


@final
class NpyHeader(NamedTuple):
    """The header of an array.

    Attributes:
        dtype: Of its elements: numbers or bools.
        shape: Its shape.
        fortran: Whether its first axis is the one that varies fastest.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    @property
    def bytes(self) -> int:
        """Bytes of its elements."""
        return self.dtype.itemsize * math.prod(self.shape)


def read_npy_header(file: IO[bytes]) -> NpyHeader:
    """Read a header; the elements follow in the file.

    Raises:
        ValueError: It is none, or of an array of other elements than numbers.
    """
    start = file.read(len(_MAGIC) + 2)
    size = _LENGTH_BYTES.get(tuple(start[len(_MAGIC) :]))  # type: ignore[arg-type]
    if not start.startswith(_MAGIC) or size is None:
        raise ValueError("it does not begin as an array of numpy does")
    length = int.from_bytes(file.read(size), "little")
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f"its header has {length:,} bytes, at most {_MAX_HEADER_BYTES:,} are read")
    found = _HEADER.fullmatch(file.read(length))
    if found is None:
        raise ValueError("its header is damaged, or its elements are not numbers")
    try:
        dtype = np.dtype(found["dtype"].decode())
        shape = tuple(int(n) for n in found["shape"].replace(b" ", b"").split(b",") if n)
    except (TypeError, ValueError) as error:
        raise ValueError(f"bad header: {error}") from None
    if len(shape) > _MAX_AXES or dtype.itemsize * math.prod(max(n, 1) for n in shape) > _MAX_BYTES:
        raise ValueError("its shape is impossible")
    return NpyHeader(dtype, shape, found["fortran"] == b"True")


def map_npy(path: Path) -> Array:
    """Return the array of a file, mapped read-only.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not an array of numbers, or is cut off.
    """
    with open_regular(path) as file:
        header = read_npy_header(file)
        begin, size = file.tell(), os.fstat(file.fileno()).st_size
        if header.bytes > size - begin:
            raise ValueError(
                f"it is cut off: {header.shape} of {header.dtype} are {header.bytes:,} bytes, it "
                f"has {size - begin:,}"
            )
        order = "F" if header.fortran else "C"
        if not header.bytes:
            return np.empty(header.shape, header.dtype, order)  # type: ignore[call-overload, no-any-return]
        return np.memmap(file, header.dtype, "r", begin, header.shape, order)  # type: ignore[call-overload, no-any-return]
