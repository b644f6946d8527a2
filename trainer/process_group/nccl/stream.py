"""The stream that collectives run on, apart from the caller's: what the group needs of CUDA.

A protocol, because nothing of CUDA works without a driver: tests without a GPU put another in its
place, everything else of the group is the same.
"""

from typing import Any, Protocol, final

import numpy.typing as npt


class StreamEvent(Protocol):
    """A point in a stream's work."""

    def is_reached(self) -> bool:
        """Return whether the stream has come so far."""


class DeviceStream(Protocol):
    """A stream of its own, ordered against that of the caller."""

    @property
    def pointer(self) -> int:
        """What NCCL calls take."""

    @property
    def token(self) -> int:
        """Address of four bytes of device memory, for collectives without data."""

    def follow_caller(self) -> None:
        """Let work that comes now wait for what the caller has queued on its stream."""

    def mark(self) -> StreamEvent:
        """Return the point behind all work so far."""

    def lead_caller(self, mark: StreamEvent) -> None:
        """Let the caller's stream wait until this one has reached a mark."""

    def contiguous(self, array: Any) -> Any:
        """Return an array's values as one run: itself, or a copy made on this stream."""

    def put_back(self, array: Any, flat: Any) -> None:
        """Copy a run back into its array, on this stream, if it is a copy."""

    def empty(self, shape: Any, dtype: npt.DTypeLike) -> Any:
        """Return device memory."""

    def is_array(self, value: Any) -> bool:
        """Return whether a value is an array of the device."""

    def use_device(self) -> None:
        """Make the stream's device that of the calling thread."""

    def another(self) -> "DeviceStream":
        """Return another stream of the same device."""

    def close(self) -> None:
        """Free what it holds."""


@final
class _CudaMark:
    """An event."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def is_reached(self) -> bool:
        """Return whether the event has happened."""
        return bool(self.event.done)


@final
class CudaStream:
    """A stream of the current device.

    Args:
        device: Number of the GPU; None for the current one.
    """

    def __init__(self, device: int | None = None) -> None:
        import cupy

        self._cupy = cupy
        if device is not None:
            cupy.cuda.Device(device).use()
        self._device = int(cupy.cuda.runtime.getDevice())
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._token = cupy.zeros(1, "int32")

    @property
    def pointer(self) -> int:
        """The stream's handle."""
        return int(self._stream.ptr)

    @property
    def token(self) -> int:
        """Address of four bytes."""
        return int(self._token.data.ptr)

    def follow_caller(self) -> None:
        """Wait for the caller's current stream."""
        self._stream.wait_event(self._cupy.cuda.get_current_stream().record())

    def mark(self) -> _CudaMark:
        """Record an event."""
        return _CudaMark(self._stream.record())

    def lead_caller(self, mark: StreamEvent) -> None:
        """Let the caller's current stream wait for an event."""
        assert isinstance(mark, _CudaMark)
        self._cupy.cuda.get_current_stream().wait_event(mark.event)

    def contiguous(self, array: Any) -> Any:
        """Return the array, or a contiguous copy."""
        with self._stream:
            return self._cupy.ascontiguousarray(array)

    def put_back(self, array: Any, flat: Any) -> None:
        """Copy the run back, if it is a copy."""
        if flat.data.ptr != array.data.ptr:
            with self._stream:
                array[...] = flat.reshape(array.shape)

    def empty(self, shape: Any, dtype: npt.DTypeLike) -> Any:
        """Return device memory."""
        return self._cupy.empty(shape, dtype)

    def is_array(self, value: Any) -> bool:
        """Return whether a value is a cupy array."""
        return isinstance(value, self._cupy.ndarray)

    def use_device(self) -> None:
        """Make the stream's device that of the calling thread."""
        self._cupy.cuda.Device(self._device).use()

    def another(self) -> "CudaStream":
        """Return another stream of the same device."""
        return CudaStream(self._device)

    def close(self) -> None:
        """Do nothing: cupy frees it with the last reference."""
