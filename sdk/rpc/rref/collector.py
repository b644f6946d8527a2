"""Collects the references of workers that are gone, by the leases of the mesh."""

import logging
import threading
from typing import final

from gradmesh.protos.errors import MeshError
from gradmesh.sdk.rpc.peers import Peers
from gradmesh.sdk.rpc.rref.exchange import Exchange
from gradmesh.sdk.rpc.rref.ids import Worker
from gradmesh.sdk.transport.deadline import Deadline

_log = logging.getLogger(__name__)

_EVERY_S = 2.0


@final
class Collector:
    """Looks now and then who is still there.

    Args:
        exchange: The references.
        peers: Knows who is there.
    """

    def __init__(self, exchange: Exchange, peers: Peers) -> None:
        self._exchange = exchange
        self._peers = peers
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._run, name="rref-collector", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(_EVERY_S):
            try:
                self.collect()
            except MeshError as error:
                _log.debug("references not looked after", extra={"error": error.message})
            except Exception:
                _log.exception("references not looked after")

    def collect(self) -> None:
        """Forget what belongs to workers that are gone.

        A name that came back with another incarnation is another worker.
        """
        exchange = self._exchange
        others = {holder for holder in exchange.owners.holders() if holder != exchange.me}
        if not others and not exchange.users.counts()["num_pending_children"]:
            return
        members = self._peers.refresh(Deadline.after(_EVERY_S))

        def is_gone(worker: Worker) -> bool:
            return worker != exchange.me and self._peers.is_lost(worker, members)

        count = exchange.owners.collect(is_gone)
        exchange.users.collect(is_gone)
        if count:
            _log.warning("collected references of lost workers", extra={"references": count})

    def close(self) -> None:
        """End; may be called twice."""
        self._closed.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)
