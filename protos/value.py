"""Python values as typed values of the wire, and back. No value can carry code."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import value_pb2 as pb
from gradmesh.protos.dtype import wire_dtype
from gradmesh.protos.errors import InvalidFrame, InvalidRequest
from gradmesh.protos.frame import Array

_INT64 = range(-(2**63), 2**63)

Encode: TypeAlias = Callable[[object, list[Array]], pb.Value | None]
"""Encodes an object that this module cannot: returns its value or None; appends its arrays."""

Decode: TypeAlias = Callable[[str, pb.Value, list[Array]], Any]
"""Decodes a value of the kinds in `FOREIGN`, given the kind and the arrays."""

FOREIGN = frozenset({"tensor_value", "rows_value", "ref_value", "worker_value", "module_value"})
"""Kinds whose Python classes are defined in other packages."""


def to_value(obj: object, arrays: list[Array], other: Encode | None = None) -> pb.Value:
    """Return the typed value of a Python object.

    Args:
        obj: None, bool, int, float, str, bytes, numpy array or scalar, list, tuple, dict with text
            keys, or a remote reference. A numpy scalar becomes an array without axes.
        arrays: Receives the arrays; the value points into it.
        other: Called for objects of any other type.

    Raises:
        InvalidRequest: The object has another type, or is nested too deeply.
    """
    try:
        return _to_value(obj, arrays, other, 0)
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"text that is not Unicode cannot be sent: {error}") from None


def _to_value(obj: object, arrays: list[Array], other: Encode | None, depth: int) -> pb.Value:
    if depth > limits.MAX_VALUE_DEPTH:
        raise InvalidRequest(f"a value nested deeper than {limits.MAX_VALUE_DEPTH} cannot be sent")
    match obj:
        case None:
            return pb.Value(null_value=pb.NullValue())
        case bool():
            return pb.Value(bool_value=obj)
        case int() if obj in _INT64:
            return pb.Value(int_value=obj)
        case int():
            raise InvalidRequest("an integer of more than 64 bits cannot be sent; send it as text")
        case str():
            return pb.Value(string_value=obj)
        case bytes():
            return pb.Value(bytes_value=obj)
        # Before float: numpy's float64 is also a Python float, its float32 is not.
        case np.ndarray() | np.generic():
            wire_dtype(obj.dtype)
            arrays.append(np.asarray(obj))
            return pb.Value(array_index=len(arrays) - 1)
        case float():
            return pb.Value(float_value=obj)
        case list() | tuple():
            items = [_to_value(item, arrays, other, depth + 1) for item in obj]
            fixed = isinstance(obj, tuple)
            return pb.Value(list_value=pb.ListValue(items=items, fixed=fixed))
        case Mapping() if all(isinstance(key, str) for key in obj):
            entries = {key: _to_value(item, arrays, other, depth + 1) for key, item in obj.items()}
            return pb.Value(map_value=pb.MapValue(entries=entries))
        case pb.RemoteRef():
            return pb.Value(ref_value=obj)
    if other is not None and (value := other(obj, arrays)) is not None:
        return value
    raise InvalidRequest(
        f"a {type(obj).__name__} cannot be sent; use numbers, text, bytes, arrays, tensors, "
        "lists, tuples or dicts with text keys",
        type=type(obj).__name__,
    )


def from_value(
    value: pb.Value, arrays: list[Array], other: Decode | None = None, depth: int = 0
) -> Any:
    """Return the Python object of a typed value.

    Args:
        value: The typed value.
        arrays: The arrays that arrived with it.
        other: Makes the objects of the kinds in `FOREIGN`; without it they stay messages.
        depth: Nesting depth of the value in lists and maps.

    Raises:
        InvalidFrame: The value is empty, points to an array that was not sent, or is nested too
            deeply.
    """
    if depth > limits.MAX_VALUE_DEPTH:
        raise InvalidFrame(f"a typed value nested deeper than {limits.MAX_VALUE_DEPTH}")
    kind = value.WhichOneof("kind")
    match kind:
        case "null_value":
            return None
        case "array_index" if value.array_index < len(arrays):
            return arrays[value.array_index]
        case "list_value":
            items = [from_value(i, arrays, other, depth + 1) for i in value.list_value.items]
            return tuple(items) if value.list_value.fixed else items
        case "map_value":
            entries = value.map_value.entries
            return {
                key: from_value(item, arrays, other, depth + 1) for key, item in entries.items()
            }
        case "bool_value" | "int_value" | "float_value" | "string_value" | "bytes_value":
            return getattr(value, kind)
    if kind in FOREIGN:
        return getattr(value, kind) if other is None else other(kind, value, arrays)
    raise InvalidFrame("a typed value that is empty or points to an array that was not sent")
