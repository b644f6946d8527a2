"""What a checkpoint may say about a table, and hold of it: checked before anything is changed."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import numpy_dtype
from gradmesh.protos.frame import Array
from gradmesh.protos.limits import check_name
from gradmesh.protos.sharding import BUCKETS
from gradmesh.sdk.table.gradients import BadGradients
from gradmesh.sdk.table.recipe import initializer_of, rule_of
from gradmesh.sdk.table.schedule import schedule_of

_OF_BUCKETS = frozenset(("buckets", "clocks", "counters", "uses"))
_PAIRS = {"ids": ("rows", "marks"), "alive": ("alive_marks",), "buckets": ("clocks", "uses")}


def spec_dict(spec: table_pb2.TableSpec) -> dict[str, Any]:
    """Return a specification as JSON for a manifest."""
    found: dict[str, Any] = MessageToDict(spec)
    return found


def read_spec(plain: dict[str, Any]) -> table_pb2.TableSpec:
    """Return a specification from the JSON of a manifest.

    Raises:
        ValueError: It is not one, or no table can have it.
    """
    try:
        spec = ParseDict(plain, table_pb2.TableSpec(), max_recursion_depth=8)
    except (TypeError, OverflowError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        # Errors of the parser have no base class but Exception.
        raise ValueError(f"{type(error).__name__}: {error}") from None
    check_name("table", spec.name)
    hashed = spec.kind == table_pb2.TABLE_KIND_HASH
    if hashed != (spec.rows == 0) or not 0 <= spec.rows <= limits.MAX_TABLE_ROWS:
        raise ValueError(f"table {spec.name!r} has {spec.rows} rows")
    if not 0 < spec.dim <= limits.MAX_TABLE_DIM:
        raise ValueError(f"table {spec.name!r} has rows of {spec.dim} elements")
    dtype = numpy_dtype(spec.dtype)
    if dtype.kind != "f" and dtype.name != "bfloat16":
        raise ValueError(f"table {spec.name!r} has elements of type {dtype}")
    initializer_of(spec.initializer)
    rule_of(spec.optimizer)
    schedule_of(spec.schedule)
    BadGradients.of(spec.bad_gradients)
    return spec


def check_arrays_of(spec: table_pb2.TableSpec, arrays: Mapping[str, Array]) -> int:
    """Check the arrays of a shard file; return the number of rows in it.

    Raises:
        ValueError: They are not those of this table; the message names the array.
    """
    for name, array in arrays.items():
        if name in ("ids", "alive", "buckets"):
            _check_keys(name, array, spec)
        elif name == "rows":
            _check_shape(name, array, (spec.dim,))
            if array.dtype != numpy_dtype(spec.dtype):
                raise ValueError(f"rows are {array.dtype}, the table's {numpy_dtype(spec.dtype)}")
        elif name in ("marks", "alive_marks"):
            _check_shape(name, array, ())
        elif not name.startswith("state.") and name not in _OF_BUCKETS:
            raise ValueError(f"array {name!r:.80} is not of a table")
    for key, others in _PAIRS.items():
        if (key in arrays) != any(n in arrays for n in _belonging(key, others, arrays)):
            raise ValueError(f"{key} and what belongs to them are not both there")
        for name in _belonging(key, others, arrays):
            if name in arrays and arrays[name].shape[:1] != arrays[key].shape:
                raise ValueError(f"{name} is {arrays[name].shape} for {arrays[key].shape} {key}")
    if ("ids" in arrays) != ("rows" in arrays):
        raise ValueError("ids and rows are not both there")
    return arrays["ids"].size if "ids" in arrays else 0


def _belonging(key: str, others: tuple[str, ...], arrays: Mapping[str, Array]) -> tuple[str, ...]:
    """Return the names of the arrays with an entry for each entry of `key`."""
    more = [n for n in arrays if n.startswith("state.")] if key == "ids" else []
    return (*others, *(("counters",) if key == "buckets" else ()), *more)


def _check_keys(name: str, array: Array, spec: table_pb2.TableSpec) -> None:
    """Check ids of rows, or numbers of buckets."""
    _check_shape(name, array, ())
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} are {array.dtype}, expected whole numbers")
    most = BUCKETS if name == "buckets" else spec.rows
    if most and array.size and not 0 <= int(array.min()) <= int(array.max()) < most:
        raise ValueError(f"{name} are not all from 0 to {most - 1}")


def _check_shape(name: str, array: Array, rest: tuple[int, ...]) -> None:
    if not array.ndim or array.shape[1:] != rest:
        raise ValueError(f"{name} is {array.shape}, expected {('n', *rest)}")
