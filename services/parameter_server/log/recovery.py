"""From what a log holds to a store that goes on where the former process ended."""

import logging
import time
from typing import TYPE_CHECKING

from gradmesh.services.parameter_server.log.errors import LogCorrupt
from gradmesh.services.parameter_server.log.replay import Replay
from gradmesh.services.parameter_server.log.segment import read_segment, segments_of
from gradmesh.services.parameter_server.log.snapshot import load_snapshot

if TYPE_CHECKING:
    from gradmesh.services.parameter_server.store import Store

_log = logging.getLogger(__name__)


def recover(store: "Store") -> int:
    """Bring an empty store to the end of its log; return how many records were done again.

    Raises:
        LogCorrupt: The log is damaged before its end, or has a gap.
    """
    log = store.log
    assert log is not None
    begun = time.monotonic()
    first = number = load_snapshot(store, log.folder)
    # A file that begins before the snapshot was about to be removed.
    found = [(start, path) for start, path in segments_of(log.folder) if start >= first]
    replay = Replay(store)
    for place, (start, path) in enumerate(found):
        if start != number:
            raise LogCorrupt(path, f"records {number} to {start - 1} before it are missing")
        for held, record, arrays in read_segment(path, start, is_last=place == len(found) - 1):
            replay.do(record, arrays)
            number = held + 1
    log.go_on(number)
    log.forget_before(first)
    store.steps.resume_after_restart()
    if number > 1:
        run = store.steps.run
        _log.info(
            "recovered from the log",
            extra={
                "records": number - first,
                "tables": len(store.shelf.all()),
                "generation": run.generation,
                "step": run.applied_steps,
                "prepared": run.prepared_steps,
                "seconds": round(time.monotonic() - begun, 2),
            },
        )
    return number - first
