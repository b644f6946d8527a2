"""The watchdog of NCCL's collectives ends on request at any moment."""

import threading
from pathlib import Path
from typing import Any

from gradmesh.trainer.errors import GroupClosed
from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.nccl.watchdog import NcclWatchdog
from gradmesh.trainer.process_group.store import FileStore


class _Communicator:
    """Counts how often it was destroyed."""

    destroyed = 0

    def destroy(self) -> None:
        self.destroyed += 1


class _SlowAbortSignal:
    """Signal whose error, read on the watchdog's thread, is returned only after `resume`."""

    def __init__(self) -> None:
        self._abort_signal = AbortSignal()
        self.was_read = threading.Event()
        self.resume = threading.Event()

    @property
    def error(self) -> Exception | None:
        read = self._abort_signal.error
        if threading.current_thread().name == "process-group-nccl-0" and not self.was_read.is_set():
            self.was_read.set()
            assert self.resume.wait(120)
        return read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._abort_signal, name)


def test_an_end_just_before_the_watchdog_sleeps_is_seen(tmp_path: Path) -> None:
    communicator, abort_signal = _Communicator(), _SlowAbortSignal()
    watchdog = NcclWatchdog(communicator, 0, 1, 10.0, FileStore(tmp_path), abort_signal)  # type: ignore[arg-type]
    assert abort_signal.was_read.wait(120)
    watchdog.abort(GroupClosed("closed"))
    abort_signal.resume.set()
    watchdog.join(30)
    assert communicator.destroyed == 1
    abort_signal.close()
