"""Quantisation to 8 bits: every rank sends one byte per element and sums those of all ranks.

Each value is rounded to one of 256 steps between minimum and maximum, of the bucket or of each
run of 512 elements. Lossy; sums run in rank order, so all ranks get the same result.
"""

from __future__ import annotations

from typing import Any

from gradmesh.engine.backend import Array, array_module
from gradmesh.trainer.ddp.comm_hook import CommFuture, GradBucket
from gradmesh.trainer.ddp.comm_hooks.default import group_of
from gradmesh.trainer.ddp.gradients import copy_into
from gradmesh.trainer.process_group import ProcessGroup

_STEPS = 255
_CHANNEL = 512


def quantization_pertensor_hook(process_group: Any, bucket: GradBucket) -> CommFuture:
    """Average with 8-bit quantisation, one range of values per bucket."""
    _check_dense(bucket)
    buffer = bucket.buffer()
    return _exchange(group_of(process_group, bucket), buffer, buffer.size)


def quantization_perchannel_hook(
    process_group: Any, bucket: GradBucket, bucket_size: int = _CHANNEL
) -> CommFuture:
    """Average with 8-bit quantisation, one range of values per `bucket_size` elements."""
    _check_dense(bucket)
    return _exchange(group_of(process_group, bucket), bucket.buffer(), bucket_size)


def _check_dense(bucket: GradBucket) -> None:
    if bucket.is_sparse():
        raise ValueError("quantisation hooks take dense gradients; leave sparse layers unwrapped")


def _exchange(group: ProcessGroup, buffer: Array, width: int) -> CommFuture:
    runs = -(-buffer.size // width)
    codes = group.empty((group.size, runs * width), "uint8")
    scales = group.empty((group.size, runs, 2), "float32")
    own_codes, own_scales = _quantised(buffer, width)
    sent_codes, sent_scales = group.empty(runs * width, "uint8"), group.empty((runs, 2), "f4")
    copy_into(sent_codes, own_codes)
    copy_into(sent_scales, own_scales)
    first = group.all_gather(list(scales), sent_scales)
    second = group.all_gather(list(codes), sent_codes)

    def finish() -> Array:
        first.wait()
        second.wait()
        xp = array_module(buffer)
        total = xp.zeros(runs * width, dtype="float32")
        for rank in range(group.size):
            total += _restored(xp, codes[rank], scales[rank], width)
        total /= total.dtype.type(group.size)
        copy_into(buffer, total[: buffer.size].astype(buffer.dtype))
        return buffer

    return CommFuture(finish)


def _quantised(buffer: Array, width: int) -> tuple[Array, Array]:
    """Return codes, uint8, and minimum and step of each run, float32 [runs, 2]."""
    xp = array_module(buffer)
    runs = -(-buffer.size // width)
    padded = xp.zeros(runs * width, dtype="float32")
    padded[: buffer.size] = buffer
    rows = padded.reshape(runs, width)
    lowest, highest = rows.min(axis=1), rows.max(axis=1)
    step = (highest - lowest) / padded.dtype.type(_STEPS)
    step[step == 0] = 1
    codes = xp.rint((rows - lowest[:, None]) / step[:, None])
    return codes.astype("uint8").reshape(-1), xp.stack([lowest, step], axis=1)


def _restored(xp: Any, codes: Array, scales: Array, width: int) -> Array:
    rows = xp.asarray(codes).reshape(-1, width).astype("float32")
    steps = xp.asarray(scales)
    return (rows * steps[:, 1:2] + steps[:, 0:1]).reshape(-1)
