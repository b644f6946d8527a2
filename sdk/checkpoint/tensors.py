"""Files in the safetensors format, written and read piece by piece, with bfloat16.

A file is the length of a JSON header, the header, then the arrays one after the other.
"""

import io
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from gradmesh.protos.frame import Array

_MAX_HEADER_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20
_TYPES: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "U32": np.dtype("<u4"),
    "U8": np.dtype("u1"),
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def header_of(
    shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], metadata: Mapping[str, str]
) -> bytes:
    """Return the beginning of a file whose arrays follow in this order.

    Raises:
        ValueError: The format, or this file, has no such element type.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, (dtype, shape) in shapes.items():
        if dtype not in _NAMES:
            raise ValueError(f"{name}: elements of type {dtype} are not written")
        end = at + dtype.itemsize * math.prod(shape)
        entries[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    # Arrays begin at a multiple of eight, for readers that map the file.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_tensors(file: BinaryIO, arrays: Mapping[str, Array]) -> tuple[int, int]:
    """Write arrays; return the bytes written and their CRC-32."""
    head = header_of({n: (a.dtype, a.shape) for n, a in arrays.items()}, {})
    size, checksum = 0, 0
    parts: list[bytes | memoryview] = [head, *(as_bytes(array) for array in arrays.values())]
    for part in parts:
        file.write(part)
        size, checksum = size + len(part), zlib.crc32(part, checksum)
    return size, checksum


def as_bytes(array: Array) -> memoryview:
    """Return the memory of an array, little-endian and in order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def read_header(path: Path) -> dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]:
    """Return type, shape and offset of each array of a file.

    Raises:
        ValueError: Not a safetensors file, or cut off.
    """
    with path.open("rb") as file:
        return _header(file, path.stat().st_size)


def _header(file: BinaryIO, size: int) -> dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]:
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
        raise ValueError("no safetensors header")
    try:
        entries = json.loads(file.read(length))
        entries.pop("__metadata__", None)
        return {name: _entry(item, 8 + length, size) for name, item in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"bad safetensors header: {error}") from None


def _entry(item: Any, begin: int, size: int) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    dtype, shape = _TYPES[item["dtype"]], tuple(int(n) for n in item["shape"])
    first, last = item["data_offsets"]
    if min((first, *shape)) < 0 or last - first != dtype.itemsize * math.prod(shape):
        raise ValueError("offsets and shape do not agree")
    if begin + last > size:
        raise ValueError("the file is cut off")
    return dtype, shape, begin + first


def parse_tensors(data: bytes) -> dict[str, Array]:
    """Return the arrays of a file that is in memory, in memory of their own.

    Raises:
        ValueError: Not a safetensors file.
    """
    return {
        name: np.frombuffer(data, dtype, math.prod(shape), begin).reshape(shape).copy()
        for name, (dtype, shape, begin) in _header(io.BytesIO(data), len(data)).items()
    }


def map_tensors(path: Path) -> dict[str, Array]:
    """Return the arrays of a file, mapped read-only.

    Raises:
        ValueError: Not a safetensors file.
    """
    found: dict[str, Array] = {}
    for name, (dtype, shape, begin) in read_header(path).items():
        if math.prod(shape):
            raw = np.memmap(path, np.uint8, "r", begin, (dtype.itemsize * math.prod(shape),))
            found[name] = np.frombuffer(raw, dtype).reshape(shape)
        else:
            found[name] = np.empty(shape, dtype)
    return found


def checksum_of(path: Path) -> tuple[int, int]:
    """Return the size of a file and its CRC-32."""
    size, checksum = 0, 0
    with path.open("rb") as file:
        for part in _parts(file):
            size, checksum = size + len(part), zlib.crc32(part, checksum)
    return size, checksum


def _parts(file: BinaryIO) -> Iterable[bytes]:
    while part := file.read(_CHUNK_BYTES):
        yield part
