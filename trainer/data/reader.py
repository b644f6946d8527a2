"""Readers of blocks, in the order of the requests: in this process, or ahead in processes."""

import contextlib
import fcntl
import json
import os
import select
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Final, final

import numpy as np

from gradmesh.trainer.data.blocks import Blocks
from gradmesh.trainer.data.samples import BadLine, Batch, Block
from gradmesh.trainer.errors import DataError


class BlockReader(ABC):
    """Reads blocks, ahead of time if it can.

    Attributes:
        depth: Blocks to request before taking the first.
    """

    depth: int

    @abstractmethod
    def request(self, epoch: int, block: int) -> None:
        """Request a block."""

    @abstractmethod
    def take(self) -> Block | None:
        """Return the block that was requested first; None if there is no such block.

        Raises:
            DataError: It cannot be read, or not in time.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop reading; may be called twice, and with blocks not taken."""


@final
class LocalReader(BlockReader):
    """Reads in the caller's thread, when a block is taken.

    Args:
        blocks: The data set; closed with the reader.
    """

    depth = 1

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._wanted: deque[tuple[int, int]] = deque()

    def request(self, epoch: int, block: int) -> None:
        """Request a block."""
        self._wanted.append((epoch, block))

    def take(self) -> Block | None:
        """Read the block that was requested first."""
        return self._blocks.read(*self._wanted.popleft())

    def close(self) -> None:
        """Close the data set."""
        self._blocks.close()


_DTYPES: Final = (np.float32, np.int64, np.float32, np.float32)
_PIPE_BYTES: Final = 1 << 20
_END_S: Final = 5.0
_AHEAD: Final = 2


@final
class ReaderPool(BlockReader):
    """Distributes blocks over reader processes, which parse them while the trainer trains.

    Args:
        order: What to read, as reader_process takes it.
        processes: How many.
        timeout_s: How long a block may take.
    """

    def __init__(self, order: dict[str, Any], processes: int, timeout_s: float) -> None:
        self.depth = processes * _AHEAD
        self._timeout_s = timeout_s
        self._turn = 0
        self._asked: deque[_Reader] = deque()
        self._readers: list[_Reader] = []
        for number in range(processes):
            self._readers.append(_Reader(number, order))

    def request(self, epoch: int, block: int) -> None:
        """Request a block from the next process in turn."""
        reader = self._readers[self._turn % len(self._readers)]
        self._turn += 1
        reader.request(epoch, block)
        self._asked.append(reader)

    def take(self) -> Block | None:
        """Return the block that was requested first."""
        return self._asked.popleft().take(time.monotonic() + self._timeout_s)

    def close(self) -> None:
        """End the processes by closing their input, and by force if that does not suffice."""
        for reader in self._readers:
            reader.end()
        for reader in self._readers:
            reader.wait()
        self._readers = []


class _Reader:
    """One process."""

    def __init__(self, number: int, order: dict[str, Any]) -> None:
        self._name = f"reader {number}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gradmesh.trainer.data.reader_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # The trainer handles the terminal's signals and ends its readers.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands, self._answers = self._process.stdin, self._process.stdout
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._answers, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._buffer = bytearray()
        self._send(json.dumps(order))

    def request(self, epoch: int, block: int) -> None:
        self._send(f"{epoch} {block}")

    def take(self, deadline: float) -> Block | None:
        header = json.loads(self._line(deadline))
        if "error" in header:
            raise DataError(header["error"])
        if "end" in header:
            return None
        shapes = zip(header["shapes"], _DTYPES, strict=False)
        arrays: list[Any] = [np.empty(shape, dtype) for shape, dtype in shapes]
        for array in arrays:
            if array.size:
                self._fill(memoryview(array).cast("B"), deadline)
        bad = tuple(BadLine(*line) for line in header["bad"])
        return Block(Batch(*arrays), bad)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._commands.close()
        # A reader blocked on its output would not see the end of its input.
        self._answers.close()

    def wait(self) -> None:
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, text: str) -> None:
        try:
            self._commands.write(text.encode() + b"\n")
        except OSError as error:
            raise self._lost() from error

    def _line(self, deadline: float) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            self._buffer += self._some(65536, deadline)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _fill(self, view: memoryview, deadline: float) -> None:
        held = min(len(self._buffer), len(view))
        view[:held] = self._buffer[:held]
        del self._buffer[:held]
        while held < len(view):
            self._await(deadline)
            got = os.readv(self._answers.fileno(), [view[held:]])
            if not got:
                raise self._lost()
            held += got

    def _some(self, most: int, deadline: float) -> bytes:
        self._await(deadline)
        content = os.read(self._answers.fileno(), most)
        if not content:
            raise self._lost()
        return content

    def _await(self, deadline: float) -> None:
        left = max(0.0, deadline - time.monotonic())
        if not select.select([self._answers], [], [], left)[0]:
            raise DataError(
                f"{self._name} took too long for a block; raise data.reader_timeout_s, or lower"
                " data.block_kib"
            )

    def _lost(self) -> DataError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        return DataError(
            f"{self._name} ended with {self._process.poll()}; its last output is in the log above"
        )
