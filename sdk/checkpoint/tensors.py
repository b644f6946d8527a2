"""Files in the safetensors format, written and read piece by piece, with bfloat16.

A file is the length of a JSON header, the header, then the arrays one after the other.
"""

import io
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from gradmesh.protos.frame import Array
from gradmesh.sdk.process.bounded_file import open_regular

MAX_HEADER_BYTES = 8 << 20
"""Longest header that is written and read, for about 80 000 arrays: parsed, it takes 20 times as
much memory."""

_MAX_AXES = 8
_MAX_BYTES = 1 << 62
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
        ValueError: The format, or this file, has no such element type, or there are too many.
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
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"{len(shapes):,} arrays do not fit into one file")
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


class StoredArray(NamedTuple):
    """Where an array is in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int

    @property
    def bytes(self) -> int:
        """Bytes of its elements."""
        return self.dtype.itemsize * math.prod(self.shape)


def read_header(path: Path) -> dict[str, StoredArray]:
    """Return type, shape and offset of each array of a file.

    Raises:
        OSError: It cannot be read.
        ValueError: Not a safetensors file, or cut off.
    """
    with open_regular(path) as file:
        return _header(file, os.fstat(file.fileno()).st_size)[0]


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a file: texts by name.

    Raises:
        OSError: It cannot be read.
        ValueError: Not a safetensors file, or cut off.
    """
    with open_regular(path) as file:
        return _header(file, os.fstat(file.fileno()).st_size)[1]


def _header(file: BinaryIO, size: int) -> tuple[dict[str, StoredArray], dict[str, str]]:
    """Return arrays and metadata; `size` is that of the whole file."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise ValueError("no safetensors header")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {length:,} bytes, at most {MAX_HEADER_BYTES:,} are read")
    try:
        entries = json.loads(file.read(length), object_pairs_hook=_unique)
        metadata = entries.pop("__metadata__", {})
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("metadata must be texts")
        found = {name: _entry(item, 8 + length) for name, item in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"bad safetensors header: {error!s:.200}") from None
    _check_layout(found, 8 + length, size)
    return found, metadata


def _check_layout(found: Mapping[str, StoredArray], at: int, size: int) -> None:
    """Raise unless the arrays fill the rest of a file, one after the other.

    No two share bytes, so a reader never allocates more than the file has.
    """
    for name, stored in sorted(found.items(), key=lambda item: (item[1].begin, item[1].bytes)):
        if stored.begin != at:
            raise ValueError(
                f"bad safetensors file: array {name!r:.80} does not begin where the one before "
                "it ends"
            )
        at += stored.bytes
    if at > size:
        raise ValueError(f"safetensors file is cut off: {size:,} of {at:,} bytes are there")
    if at < size:
        raise ValueError(f"bad safetensors file: its last {size - at:,} bytes belong to no array")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _entry(item: dict[str, Any], begin: int) -> StoredArray:
    dtype, shape = _TYPES[item["dtype"]], item["shape"]
    first, last = item["data_offsets"]
    if not isinstance(shape, list) or len(shape) > _MAX_AXES:
        raise ValueError(f"a shape is a list of at most {_MAX_AXES} numbers")
    if any(type(n) is not int or not 0 <= n <= _MAX_BYTES for n in (first, last, *shape)):
        raise ValueError("offsets and shapes are whole numbers from 0 on")
    if dtype.itemsize * math.prod(max(n, 1) for n in shape) > _MAX_BYTES:
        raise ValueError("a shape is impossible")
    if last - first != dtype.itemsize * math.prod(shape):
        raise ValueError("offsets and shape do not agree")
    return StoredArray(dtype, tuple(shape), begin + first)


def parse_tensors(data: bytes) -> dict[str, Array]:
    """Return the arrays of a file that is in memory, in memory of their own.

    Raises:
        ValueError: Not a safetensors file.
    """
    return {
        name: np.frombuffer(data, stored.dtype, math.prod(stored.shape), stored.begin)
        .reshape(stored.shape)
        .copy()
        for name, stored in _header(io.BytesIO(data), len(data))[0].items()
    }


def map_tensors(path: Path) -> dict[str, Array]:
    """Return the arrays of a file, mapped read-only.

    Raises:
        OSError: It cannot be read.
        ValueError: Not a safetensors file.
    """
    with open_regular(path) as file:
        header, _ = _header(file, os.fstat(file.fileno()).st_size)
        # One map for all: the number of a process's maps is limited.
        raw = np.memmap(file, np.uint8, "r")
    return {name: _mapped(raw, stored) for name, stored in header.items()}


def _mapped(raw: Any, stored: StoredArray) -> Array:
    flat = np.frombuffer(raw[stored.begin : stored.begin + stored.bytes], stored.dtype)
    # Files of other programs may have arrays that begin at any byte; kernels need them aligned.
    return np.require(flat, requirements="A").reshape(stored.shape)


def checksum_of(path: Path, most: int) -> tuple[int, int]:
    """Return the size of a file and its CRC-32.

    Args:
        path: The file.
        most: Its expected size; no more is read.

    Raises:
        OSError: It cannot be read.
        ValueError: It is longer, or not a regular file.
    """
    size, checksum = 0, 0
    with open_regular(path) as file:
        if (found := os.fstat(file.fileno()).st_size) > most:
            raise ValueError(f"{found:,} bytes, {most:,} were written")
        for part in _parts(file):
            size, checksum = size + len(part), zlib.crc32(part, checksum)
            if size > most:
                raise ValueError("it grows while it is read")
    return size, checksum


def _parts(file: BinaryIO) -> Iterable[bytes]:
    while part := file.read(_CHUNK_BYTES):
        yield part
