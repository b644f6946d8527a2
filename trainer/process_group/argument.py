"""Checks of what callers pass to a collective, the same for every backend."""

from collections.abc import Sequence
from typing import get_args

import ml_dtypes
import numpy as np

from gradmesh.trainer.process_group.process_group import AnyArray, ReduceOp

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_OPS = get_args(ReduceOp)


def check_reduce(array: AnyArray, op: str) -> None:
    """Raise unless `array` can be reduced in place with `op`."""
    check_target(array, "all_reduce")
    if op not in _OPS:
        raise ValueError(f"unknown reduce op {op!r}; use one of {', '.join(_OPS)}")
    kind = "f" if array.dtype == _BFLOAT16 else array.dtype.kind
    if kind == "b" and op in ("max", "min"):
        return
    if kind not in "iuf":
        raise TypeError(f"all_reduce({op}) takes numbers, not {array.dtype}; cast the array")
    if op == "avg" and kind != "f":
        raise TypeError(f"avg of {array.dtype} is not a whole number; use sum, or cast to a float")


def check_root(root: int, size: int) -> None:
    """Raise unless `root` is a rank of the group."""
    if not 0 <= root < size:
        raise ValueError(f"root {root} is not a rank; the group has ranks 0 to {size - 1}")


def check_gather(outputs: Sequence[AnyArray], array: AnyArray, rank: int, size: int) -> None:
    """Raise unless `outputs` can take one array of each rank."""
    _check_dtype(array, "all_gather")
    if len(outputs) != size:
        raise ValueError(f"all_gather needs {size} outputs, one for each rank, not {len(outputs)}")
    for output in outputs:
        check_target(output, "all_gather")
        if output.dtype != array.dtype:
            raise TypeError(f"all_gather of {array.dtype} cannot go into {output.dtype}")
    if outputs[rank].shape != array.shape:
        raise ValueError(
            f"outputs[{rank}] has shape {outputs[rank].shape}, this rank's array {array.shape}"
        )


def check_target(array: AnyArray, collective: str) -> None:
    """Raise unless `array` can receive a result."""
    _check_dtype(array, collective)
    if not array.flags.writeable:
        raise ValueError(f"{collective} writes in place; this array is read-only, pass a copy")


def _check_dtype(array: AnyArray, collective: str) -> None:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{collective} takes numpy arrays, not {type(array).__name__}")
    if array.dtype.hasobject:
        raise TypeError(f"{collective} takes plain values, not {array.dtype}")
    if not array.dtype.isnative:
        raise TypeError(f"{collective} takes the native byte order, not {array.dtype.str!r}")
