"""The specification of a table from its arguments, and the memory that its rows need."""

from typing import Any

import numpy as np

from gradmesh.engine.optim import Optimizer, Rule, lr_scheduler
from gradmesh.protos.common.v1 import array_pb2
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import wire_dtype
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.limits import check_name
from gradmesh.protos.sharding import BUCKETS
from gradmesh.sdk.table.gradients import BadGradients
from gradmesh.sdk.table.lifetime import Admission, Eviction, lifetime_recipe
from gradmesh.sdk.table.recipe import Initializer, to_recipe
from gradmesh.sdk.table.schedule import schedule_recipe


def make_spec(
    name: str,
    rows: int | None,
    dim: int,
    optimizer: Optimizer,
    *,
    schedule: lr_scheduler.LRScheduler | None,
    initializer: Initializer | None,
    seed: int,
    dtype: Any,
    admission: Admission | None,
    eviction: Eviction | None,
    max_bytes: int,
    bad_gradients: BadGradients | None,
    hot_bytes: int,
) -> table_pb2.TableSpec:
    """Return the specification; the arguments are those of `Mesh.table`.

    Raises:
        InvalidRequest: An argument is wrong.
    """
    numbers = [("dim", dim, 1), ("seed", seed, 0), ("max_bytes", max_bytes, 0)]
    numbers += [("hot_bytes", hot_bytes, 0)]
    if rows is not None:
        numbers += [("rows", rows, 1)]
    for what, value, least in numbers:
        if not isinstance(value, int | np.integer) or not least <= value < 2**63:
            raise InvalidRequest(
                f"table {name!r}: {what} must be a whole number from {least} on, not {value!r}",
                table=name,
            )
    return table_pb2.TableSpec(
        name=check_name("table", name),
        kind=None if rows is not None else table_pb2.TABLE_KIND_HASH,
        rows=rows,
        dim=dim,
        dtype=array_pb2.ElementType.Name(wire_dtype(np.dtype(dtype))),
        seed=seed,
        initializer=to_recipe(initializer or Initializer.uniform(dim**-0.5)),
        optimizer=to_recipe(optimizer),
        schedule=schedule_recipe(schedule),
        admission=lifetime_recipe(admission),
        eviction=lifetime_recipe(eviction),
        max_bytes=max_bytes,
        bad_gradients=bad_gradients
        and table_pb2.Recipe(name=bad_gradients.name, settings=bad_gradients.settings),
        hot_bytes=hot_bytes,
    )


INDEX_BYTES_A_ROW = 20
"""A hash table's entry for a row: 16 bytes in buckets that are at most four fifths full."""


def wide_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of the optimizer's arithmetic and state: float32 at least."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def row_bytes(dim: int, dtype: np.dtype[Any], rule: Rule) -> int:
    """Return the memory of a row with its optimizer state; client and server agree on it."""
    state = sum(slot.width for slot in rule.slots(dim)) * wide_dtype(dtype).itemsize
    return dim * dtype.itemsize + state


def bucket_rows(max_bytes: int, bytes_a_row: int) -> int:
    """Return how many rows of one bucket fit into a hash table's limit."""
    return max_bytes // BUCKETS // (bytes_a_row + INDEX_BYTES_A_ROW)


def least_max_bytes(bytes_a_row: int) -> int:
    """Return the least limit of a hash table: one row a bucket."""
    return BUCKETS * (bytes_a_row + INDEX_BYTES_A_ROW)
