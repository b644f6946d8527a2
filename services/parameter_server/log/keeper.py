"""Keeps a log short: a snapshot now and then, beside everything else that goes on."""

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, final

from gradmesh.protos.errors import StoreFull
from gradmesh.services.parameter_server.log.snapshot import take_snapshot

if TYPE_CHECKING:
    from gradmesh.services.parameter_server.store import Store

_log = logging.getLogger(__name__)

_EVERY_S = 1.0


@final
class LogKeeper:
    """A thread that takes a snapshot when the log has grown.

    Args:
        store: Whose log.
        snapshot_bytes: How long the log may get; or as long as the tables are, if that is more.
    """

    def __init__(self, store: "Store", snapshot_bytes: int) -> None:
        self._store = store
        self._snapshot_bytes = snapshot_bytes
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-keeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(_EVERY_S):
            log = self._store.log
            held = sum(table.bytes for table in self._store.tables())
            if log is not None:
                with contextlib.suppress(StoreFull):
                    log.flush()
            if log is None or log.bytes_since_snapshot < max(self._snapshot_bytes, held):
                continue
            try:
                take_snapshot(self._store)
            except Exception as error:
                # The log is whole without it, only longer.
                _log.error("no snapshot", extra={"error": str(error)}, exc_info=True)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(timeout_s)
