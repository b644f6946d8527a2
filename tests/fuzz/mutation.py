"""Mutations of bytes: what a broken or hostile peer could send instead."""

from __future__ import annotations

import random
from collections.abc import Callable

INTERESTING = (0, 1, 2, 7, 8, 127, 128, 255, 256, 4096, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)
"""Numbers at which lengths, counts and signs go wrong."""

HUGE = (2**40, 2**47, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
"""The same for fields of 64 bits."""

_MOST_MUTATIONS = 4


def mutate(chance: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """Return `data` with a few mutations.

    Args:
        chance: The source of all decisions.
        data: Valid bytes.
        other: Valid bytes of another kind, of which a piece may be spliced in.
    """
    if not data:
        return chance.randbytes(chance.randint(0, 8))
    for _ in range(chance.randint(1, _MOST_MUTATIONS)):
        data = chance.choice(_MUTATIONS)(chance, data, other) or data[:1]
    return data


def _flip(chance: random.Random, data: bytes, other: bytes) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


def _set(chance: random.Random, data: bytes, other: bytes) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([chance.choice((0, 1, 0x7F, 0x80, 0xFF))]) + data[at + 1 :]


def _number(chance: random.Random, data: bytes, other: bytes) -> bytes:
    """Overwrite a fixed-size integer."""
    size = chance.choice((2, 4, 8))
    value = chance.choice(INTERESTING + HUGE) % (1 << (8 * size))
    at = chance.randrange(max(1, len(data) - size + 1))
    return data[:at] + value.to_bytes(size, chance.choice(("little", "big"))) + data[at + size :]


def _varint(chance: random.Random, data: bytes, other: bytes) -> bytes:
    """Replace a byte by a long varint, so that a length or a number becomes huge."""
    at = chance.randrange(len(data))
    return data[:at] + b"\xff" * chance.randint(1, 9) + b"\x01" + data[at + 1 :]


def _insert(chance: random.Random, data: bytes, other: bytes) -> bytes:
    at = chance.randint(0, len(data))
    return data[:at] + chance.randbytes(chance.randint(1, 8)) + data[at:]


def _delete(chance: random.Random, data: bytes, other: bytes) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + data[at + chance.randint(1, 8) :]


def _cut(chance: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: chance.randrange(len(data))]


def _repeat(chance: random.Random, data: bytes, other: bytes) -> bytes:
    begin = chance.randrange(len(data))
    piece = data[begin : begin + chance.randint(1, 32)]
    return data[:begin] + piece * chance.randint(2, 5) + data[begin:]


def _splice(chance: random.Random, data: bytes, other: bytes) -> bytes:
    if not other:
        return _flip(chance, data, other)
    begin = chance.randrange(len(other))
    piece = other[begin : begin + chance.randint(1, 64)]
    at = chance.randint(0, len(data))
    return data[:at] + piece + data[at + chance.choice((0, len(piece))) :]


_MUTATIONS: tuple[Callable[[random.Random, bytes, bytes], bytes], ...] = (
    _flip,
    _set,
    _number,
    _varint,
    _insert,
    _delete,
    _cut,
    _repeat,
    _splice,
)
