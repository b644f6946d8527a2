"""Raw CUDA kernels: sums of rows in order, which library calls do by atomics or in no order."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.backend.cuda import raw_function

_BODY = """
extern "C" __global__ void segment_sum_NAME(
    const TYPE* rows, const long long* order, const long long* starts, const long long* places,
    long long segments, long long count, long long dim, TYPE* out)
{
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= segments * dim) return;
    long long segment = at / dim;
    long long column = at % dim;
    long long end = segment + 1 < segments ? starts[segment + 1] : count;
    TYPE total = out[places[segment] * dim + column];
    // One thread walks one column of one segment: the order of additions is that of the rows.
    for (long long i = starts[segment]; i < end; ++i)
        total += rows[order[i] * dim + column];
    out[places[segment] * dim + column] = total;
}
"""

SOURCE = "".join(_BODY.replace("TYPE", kind).replace("NAME", kind) for kind in ("float", "double"))
"""CUDA C of all raw kernels; a test compiles it for each architecture."""

_THREADS = 256


def segment_sum(rows: Any, order: Any, starts: Any, places: Any, out: Any) -> None:
    """Add rows to out, segment by segment, in order.

    Args:
        rows: float32 or float64 [n, dim], contiguous, on the device.
        order: int64 [n], the rows sorted by segment.
        starts: int64 [segments], where each segment begins in `order`.
        places: int64 [segments], the row of out that each segment is added to; distinct.
        out: [m, dim], changed in place.
    """
    segments, dim = len(places), rows.shape[1]
    kernel = raw_function(
        SOURCE, "segment_sum_" + ("float" if rows.dtype.char == "f" else "double")
    )
    blocks = -(-segments * dim // _THREADS)
    arguments = (rows, order, starts, places, segments, len(order), dim, out)
    kernel((max(blocks, 1),), (_THREADS,), arguments)
