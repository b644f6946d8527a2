"""cupy's NCCL binding: loading it, its constants, and creating a communicator."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np

from gradmesh.trainer.errors import BackendMissing, CollectiveTimeout
from gradmesh.trainer.process_group.nccl import binding
from gradmesh.trainer.process_group.nccl.stream import DeviceStream
from gradmesh.trainer.process_group.process_group import ReduceOp
from gradmesh.trainer.process_group.store import Store, get_from_rank

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
    # Only compared and copied: False is 0 and True is 1.
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


def dtype_constant(nccl: Any, dtype: np.dtype[Any]) -> int:
    """Return NCCL's constant for a dtype.

    Raises:
        TypeError: NCCL cannot reduce such elements.
    """
    name = _TYPES.get(dtype)
    if name is None:
        raise TypeError(f"NCCL cannot reduce {dtype}; cast the array")
    return int(getattr(nccl, name))


def op_constant(nccl: Any, op: ReduceOp) -> int:
    """Return NCCL's constant for a reduction."""
    return int(getattr(nccl, _OPS[op]))


def async_error(communicator: Any) -> Exception | None:
    """Return the asynchronous error of a communicator, or None."""
    try:
        communicator.check_async_error()
    except KeyError as error:
        # cupy has no name for "in progress" and raises a KeyError.
        return None if error.args == (_IN_PROGRESS,) else error
    except RuntimeError as error:
        return error
    return None


def make_communicator(
    store: Store, rank: int, world_size: int, timeout_s: float, stream: DeviceStream
) -> Any:
    """Return NCCL's communicator of all ranks.

    Raises:
        CollectiveTimeout: A rank did not connect in time.
    """
    nccl = binding.load()
    deadline = time.monotonic() + timeout_s
    if rank == 0:
        store.set("nccl/id", nccl.get_unique_id())
    # NCCL's own rendezvous has no timeout, so all ranks must be ready before it starts.
    store.set(f"nccl/ready/{rank}", b"ready")
    unique_id = get_from_rank(store, "nccl/id", 0, deadline)
    for peer in range(world_size):
        get_from_rank(store, f"nccl/ready/{peer}", peer, deadline)

    def join() -> Any:
        stream.use_device()
        return nccl.NcclCommunicator(world_size, unique_id, rank)

    return run_with_deadline(join, "NCCL's rendezvous", deadline)


def run_with_deadline(act: Callable[[], Any], what: str, deadline: float) -> Any:
    """Run an uninterruptible call on a thread, which is abandoned after the deadline."""
    results: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(act())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="nccl-rendezvous", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    if not results:
        raise CollectiveTimeout(f"{what} did not end in time; restart this process and rejoin")
    return results[0]
