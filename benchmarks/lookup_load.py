"""The ids and gradients of the lookup benchmark: the same numbers on both sides."""

import os
from functools import cache

import numpy as np
from numpy.typing import NDArray

ROWS = 1_000_000
DIM = 64
LR = 0.01
BATCH = 2048
TABLES = 26
BATCH_ROWS_VARIABLE = "BENCH_BATCH_ROWS"
"""How the parent tells both sides about the tables of the batch."""

BATCH_ROWS = int(os.environ.get(BATCH_ROWS_VARIABLE, 100_000))
"""Rows of each of the 26 tables; by default all of them fit into a small machine, twice."""

VARIANTS = 16
"""Different requests in turn, so that no cache holds the rows by chance."""


@cache
def ids(count: int, variant: int) -> NDArray[np.int64]:
    """Return ids of one request, uniform over the table."""
    return np.random.default_rng([count, variant]).integers(0, ROWS, count)


@cache
def grads(count: int) -> NDArray[np.float32]:
    """Return gradients of one request."""
    return np.random.default_rng(count).standard_normal((count, DIM), np.float32)


@cache
def batch(variant: int) -> NDArray[np.int64]:
    """Return the ids of a batch, [BATCH, TABLES], as skewed as real features are."""
    chance = np.random.default_rng([TABLES, variant])
    return (chance.zipf(1.1, (BATCH, TABLES)) - 1) % BATCH_ROWS
