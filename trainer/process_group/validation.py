"""Check the arguments of collectives, the same way for every backend."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, get_args

import ml_dtypes
import numpy as np

from gradmesh.trainer.process_group.process_group import AnyArray, ReduceOp

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_OPS = get_args(ReduceOp)


def check_reduce(array: AnyArray, op: str, collective: str = "all_reduce") -> None:
    """Raise unless `array` can be reduced in place with `op`."""
    check_target(array, collective)
    check_op(array.dtype, op, collective)


def check_op(dtype: np.dtype[Any], op: str, collective: str) -> None:
    """Raise unless elements of a dtype can be combined with `op`."""
    if op not in _OPS:
        raise ValueError(f"unknown reduce op {op!r}; use one of {', '.join(_OPS)}")
    kind = "f" if dtype == _BFLOAT16 else dtype.kind
    if kind == "b" and op in ("max", "min"):
        return
    if kind not in "iuf":
        raise TypeError(f"{collective}({op}) takes numbers, not {dtype}; cast the array")
    if op == "avg" and kind != "f":
        raise TypeError(f"avg of {dtype} is not a whole number; use sum, or cast to a float")


@lru_cache(maxsize=1024)
def describe_reduce(collective: str, op: str, count: int, dtype: np.dtype[Any]) -> str:
    """Return a reduction in words, or raise as `check_op` does. Cached: both are slow."""
    check_op(dtype, op, collective)
    return f"{collective}({op}) of {count} {dtype.name}"


def check_root(root: int, size: int) -> None:
    """Raise unless `root` is a rank of the group."""
    if not 0 <= root < size:
        raise ValueError(f"root {root} is not a rank; the group has ranks 0 to {size - 1}")


def check_peer(peer: int, rank: int, size: int) -> None:
    """Raise unless `peer` is another rank of the group."""
    if not 0 <= peer < size:
        raise ValueError(f"rank {peer} does not exist; the group has ranks 0 to {size - 1}")
    if peer == rank:
        raise ValueError(f"rank {rank} cannot send to itself or receive from itself")


def check_ranks(ranks: Sequence[int], size: int) -> list[int]:
    """Return the ranks of a sub-group in order, or raise."""
    ordered = sorted(ranks)
    if not ordered:
        raise ValueError("a sub-group needs at least one rank")
    if len(set(ordered)) < len(ordered):
        raise ValueError(f"the ranks of a sub-group must differ, not {list(ranks)}")
    if not 0 <= ordered[0] <= ordered[-1] < size:
        raise ValueError(f"the group has ranks 0 to {size - 1}, not {list(ranks)}")
    return ordered


def check_gather(
    outputs: Sequence[AnyArray],
    array: AnyArray,
    rank: int,
    size: int,
    collective: str = "all_gather",
) -> None:
    """Raise unless `outputs` can receive one array of each rank."""
    check_source(array, collective)
    for output in outputs:
        check_target(output, collective)
    check_gather_shapes(outputs, array, rank, size, collective)


def check_gather_shapes(
    outputs: Sequence[AnyArray], array: AnyArray, rank: int, size: int, collective: str
) -> None:
    """Raise unless `outputs` fit; the arrays may be of any module."""
    _check_count(outputs, size, "outputs", collective)
    for output in outputs:
        _check_same(array, output, collective)
    _check_shape(f"outputs[{rank}]", outputs[rank], "this rank's array", array)


def check_scatter(
    array: AnyArray, inputs: Sequence[AnyArray] | None, rank: int, root: int, size: int
) -> None:
    """Raise unless `array` can receive this rank's share of `inputs`."""
    check_root(root, size)
    check_target(array, "scatter")
    if rank != root:
        return
    if inputs is None:
        raise ValueError(f"rank {root} scatters: it must pass one input for each rank")
    for given in inputs:
        check_source(given, "scatter")
    check_shares(array, inputs, rank, size, "scatter")


def check_shares(
    array: AnyArray, inputs: Sequence[AnyArray], rank: int, size: int, collective: str
) -> None:
    """Raise unless `array` fits its share of `inputs`; the arrays may be of any module."""
    _check_count(inputs, size, "inputs", collective)
    for given in inputs:
        _check_same(given, array, collective)
    _check_shape(f"inputs[{rank}]", inputs[rank], "this rank's array", array)


def check_reduce_scatter(
    output: AnyArray, inputs: Sequence[AnyArray], op: str, rank: int, size: int
) -> None:
    """Raise unless the shares of `inputs` can be reduced into `output`."""
    check_reduce(output, op, "reduce_scatter")
    for given in inputs:
        check_source(given, "reduce_scatter")
    check_shares(output, inputs, rank, size, "reduce_scatter")


def check_all_to_all(
    outputs: Sequence[AnyArray], inputs: Sequence[AnyArray], rank: int, size: int
) -> None:
    """Raise unless there is one input and one output for each rank."""
    for given in inputs:
        check_source(given, "all_to_all")
    for output in outputs:
        check_target(output, "all_to_all")
    check_swap(outputs, inputs, rank, size)


def check_swap(
    outputs: Sequence[AnyArray], inputs: Sequence[AnyArray], rank: int, size: int
) -> None:
    """Raise unless inputs and outputs fit; the arrays may be of any module."""
    _check_count(inputs, size, "inputs", "all_to_all")
    _check_count(outputs, size, "outputs", "all_to_all")
    for given, output in zip(inputs, outputs, strict=True):
        _check_same(inputs[0], given, "all_to_all")
        _check_same(inputs[0], output, "all_to_all")
    _check_shape(f"inputs[{rank}]", inputs[rank], f"outputs[{rank}]", outputs[rank])


def check_target(array: AnyArray, collective: str) -> None:
    """Raise unless `array` can receive a result."""
    check_source(array, collective)
    if not array.flags.writeable:
        raise ValueError(f"{collective} writes in place; this array is read-only, pass a copy")


def check_source(array: AnyArray, collective: str) -> None:
    """Raise unless the values of `array` can be sent."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{collective} takes numpy arrays, not {type(array).__name__}")
    if array.dtype.hasobject:
        raise TypeError(f"{collective} takes plain values, not {array.dtype}")
    if not array.dtype.isnative:
        raise TypeError(f"{collective} takes the native byte order, not {array.dtype.str!r}")


def _check_count(arrays: Sequence[AnyArray], size: int, what: str, collective: str) -> None:
    if len(arrays) != size:
        raise ValueError(f"{collective} needs {size} {what}, one for each rank, not {len(arrays)}")


def _check_same(array: AnyArray, output: AnyArray, collective: str) -> None:
    if output.dtype != array.dtype:
        raise TypeError(f"{collective} of {array.dtype} cannot go into {output.dtype}")


def _check_shape(name: str, array: AnyArray, other: str, peer: AnyArray) -> None:
    if array.shape != peer.shape:
        raise ValueError(f"{name} has shape {array.shape}, {other} {peer.shape}")
