"""The CUDA stream of a group's collectives, as a protocol.

A protocol, because CUDA needs a driver: tests without a GPU substitute another implementation, and
the rest of the group is the same.
"""

from typing import Any, Protocol, final

import numpy.typing as npt


class StreamEvent(Protocol):
    """An event recorded on a stream."""

    def is_done(self) -> bool:
        """Return whether the stream has reached the event."""


class DeviceStream(Protocol):
    """A stream that can be ordered against that of the caller."""

    @property
    def pointer(self) -> int:
        """The stream's handle for NCCL."""

    @property
    def token(self) -> int:
        """Address of four bytes of device memory, for collectives without data."""

    def wait_for_caller(self) -> None:
        """Order further work after what the caller has enqueued on its stream."""

    def record_event(self) -> StreamEvent:
        """Record an event after all work so far."""

    def make_caller_wait(self, event: StreamEvent) -> None:
        """Order the caller's stream after an event of this one."""

    def contiguous(self, array: Any) -> Any:
        """Return the array if it is contiguous, or a contiguous copy made on this stream."""

    def put_back(self, array: Any, flat: Any) -> None:
        """Copy a contiguous copy back into its array, on this stream."""

    def empty(self, shape: Any, dtype: npt.DTypeLike) -> Any:
        """Return device memory."""

    def is_array(self, value: Any) -> bool:
        """Return whether a value is a device array."""

    def use_device(self) -> None:
        """Make the stream's device current in the calling thread."""

    def new_stream(self) -> "DeviceStream":
        """Return a new stream of the same device."""

    def close(self) -> None:
        """Free the stream."""


@final
class _CudaEvent:
    """A CUDA event."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def is_done(self) -> bool:
        """Return whether the event has completed."""
        return bool(self.event.done)


@final
class CudaStream:
    """A non-blocking stream of a GPU.

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

    def wait_for_caller(self) -> None:
        """Wait for the caller's current stream."""
        self._stream.wait_event(self._cupy.cuda.get_current_stream().record())

    def record_event(self) -> _CudaEvent:
        """Record an event."""
        return _CudaEvent(self._stream.record())

    def make_caller_wait(self, event: StreamEvent) -> None:
        """Make the caller's current stream wait for an event."""
        assert isinstance(event, _CudaEvent)
        self._cupy.cuda.get_current_stream().wait_event(event.event)

    def contiguous(self, array: Any) -> Any:
        """Return the array, or a contiguous copy."""
        with self._stream:
            return self._cupy.ascontiguousarray(array)

    def put_back(self, array: Any, flat: Any) -> None:
        """Copy it back, if it is a copy."""
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
        """Make the stream's device current in the calling thread."""
        self._cupy.cuda.Device(self._device).use()

    def new_stream(self) -> "CudaStream":
        """Return a new stream of the same device."""
        return CudaStream(self._device)

    def close(self) -> None:
        """Do nothing: cupy frees it with the last reference."""
