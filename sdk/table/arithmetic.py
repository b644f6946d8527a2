"""What a row takes in memory, by arithmetic; the same for who asks and for who allocates."""

from typing import Any

import numpy as np

from gradmesh.engine.optim import Rule
from gradmesh.protos.sharding import BUCKETS

INDEX_BYTES_A_ROW = 20
"""A hash table's entry for a row: 16 bytes in buckets that are at most four fifths full."""


def wide_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of the optimizer's arithmetic and state: float32 at least."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def row_bytes(dim: int, dtype: np.dtype[Any], rule: Rule) -> int:
    """Return the memory of a row with its optimizer state."""
    state = sum(slot.width for slot in rule.slots(dim)) * wide_dtype(dtype).itemsize
    return dim * dtype.itemsize + state


def bucket_rows(max_bytes: int, bytes_a_row: int) -> int:
    """Return how many rows of one bucket fit into a hash table's limit; 0 if not one."""
    return max_bytes // BUCKETS // (bytes_a_row + INDEX_BYTES_A_ROW)


def least_max_bytes(bytes_a_row: int) -> int:
    """Return the least limit of a hash table: one row a bucket."""
    return BUCKETS * (bytes_a_row + INDEX_BYTES_A_ROW)
