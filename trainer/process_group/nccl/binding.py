"""cupy's NCCL binding, loaded on first use, and our words in its numbers."""

from typing import Any, Final

import ml_dtypes
import numpy as np

from gradmesh.trainer.errors import BackendMissing
from gradmesh.trainer.process_group.process_group import ReduceOp

# Values of NCCL's ABI, which the binding exposes under these names.
_TYPES: Final = {
    np.dtype(np.int8): "NCCL_INT8",
    np.dtype(np.uint8): "NCCL_UINT8",
    np.dtype(np.int32): "NCCL_INT32",
    np.dtype(np.uint32): "NCCL_UINT32",
    np.dtype(np.int64): "NCCL_INT64",
    np.dtype(np.uint64): "NCCL_UINT64",
    np.dtype(np.float16): "NCCL_FLOAT16",
    np.dtype(np.float32): "NCCL_FLOAT32",
    np.dtype(np.float64): "NCCL_FLOAT64",
    np.dtype(ml_dtypes.bfloat16): "NCCL_BFLOAT16",
    # Only compared and copied: false is 0 and true is 1.
    np.dtype(np.bool_): "NCCL_UINT8",
}
_OPS: Final[dict[ReduceOp, str]] = {
    "sum": "NCCL_SUM",
    "avg": "NCCL_AVG",
    "max": "NCCL_MAX",
    "min": "NCCL_MIN",
    "prod": "NCCL_PROD",
}
_IN_PROGRESS: Final = 7


def load() -> Any:
    """Return the module `cupy.cuda.nccl`.

    Raises:
        BackendMissing: cupy or libnccl is not installed.
    """
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise BackendMissing(
            "the nccl backend needs cupy: install gradmesh[cuda13] or gradmesh[cuda12]"
        ) from error
    if not nccl.available:
        raise BackendMissing(
            "cupy finds no libnccl.so.2: install gradmesh[cuda13] or gradmesh[cuda12], or put"
            " the library where the loader looks"
        )
    return nccl


def type_number(nccl: Any, dtype: np.dtype[Any]) -> int:
    """Return NCCL's number of an element type.

    Raises:
        TypeError: NCCL cannot reduce such elements.
    """
    name = _TYPES.get(dtype)
    if name is None:
        raise TypeError(f"NCCL cannot reduce {dtype}; cast the array")
    return int(getattr(nccl, name))


def op_number(nccl: Any, op: ReduceOp) -> int:
    """Return NCCL's number of a reduction."""
    return int(getattr(nccl, _OPS[op]))


def async_error(communicator: Any) -> Exception | None:
    """Return what went wrong in a communicator while nobody looked."""
    try:
        communicator.check_async_error()
    except KeyError as error:
        # cupy has no name for "in progress" and stumbles over it.
        return None if error.args == (_IN_PROGRESS,) else error
    except RuntimeError as error:
        return error
    return None
