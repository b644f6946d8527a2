"""Takes part in reshards: hears of them, does what a phase asks for, and tells the coordinator."""

import logging
import threading
import time
from typing import final

from gradmesh.protos.coordinator.v1 import reshard_pb2
from gradmesh.protos.errors import GradmeshError, ReshardAborted
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.services.parameter_server.move import ADOPTING, Move, phase_name
from gradmesh.services.parameter_server.store import Store

_log = logging.getLogger(__name__)

_LOOK_S = 0.1
_TELL_S = 0.3
_PAUSE_S = 0.02
_CALL_S = 5.0
_OVER = (
    reshard_pb2.RESHARD_PHASE_UNSPECIFIED,
    reshard_pb2.RESHARD_PHASE_ABORTED,
)
_DONE = reshard_pb2.RESHARD_PHASE_DONE
_WAITING = reshard_pb2.RESHARD_PHASE_WAITING


@final
class Mover:
    """A thread of a parameter server.

    Args:
        store: Of the server.
        mesh: Of the server.
    """

    def __init__(self, store: Store, mesh: Mesh) -> None:
        self._store = store
        self._mesh = mesh
        self._emptied_at: float | None = None
        self._was_emptied_at: float | None = None  # before the reshard that is under way
        self._move: Move | None = None
        self._told_at = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mover", daemon=True)
        self._thread.start()

    def is_emptied(self, for_s: float) -> bool:
        """Tell whether the map has had no place for this server for so long."""
        emptied_at = self._emptied_at
        return emptied_at is not None and time.monotonic() - emptied_at >= for_s

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_S):
            if not self._mesh.reshard and not self._store.resharding.is_staging:
                continue
            try:
                self._take_part()
            except GradmeshError as error:
                # Most often the coordinator is on its way back.
                if not self._closed.is_set():
                    _log.warning("reshard goes on later", extra={"error": error.message})
            except Exception:
                _log.exception("reshard goes on later")

    def _take_part(self) -> None:
        """Follow a reshard to its end, as far as this server is concerned."""
        state = self._report(self._asking(), 0)
        while not self._closed.is_set():
            if self._is_over(state):
                return
            if state.phase == _WAITING or not self._is_part(state):
                state = self._report(self._asking(), state.version)
                if state.phase == _WAITING or not self._is_part(state):
                    return
                continue
            if self._move is None or self._move.number != state.number:
                self._move = Move(self._store, self._mesh, state, self._tell)
                self._was_emptied_at, self._emptied_at = self._emptied_at, None
            state = self._do(self._move, state)

    def _do(self, move: Move, state: reshard_pb2.Reshard) -> reshard_pb2.Reshard:
        """Do what a phase asks for and tell the coordinator; return what is next."""
        if state.phase >= ADOPTING:
            move.do(state)
            state = self._report(move.report, state.version)
            if state.phase == _DONE:
                self._end()
            return state
        try:
            move.do(state)
        except Exception as error:
            why = error.message if isinstance(error, GradmeshError) else repr(error)
            _log.warning(
                "reshard cannot go on", extra={"error": why, "phase": phase_name(state.phase)}
            )
            move.report.error = why
        return self._report(move.report, state.version if move.done >= state.phase else 0)

    def _is_over(self, state: reshard_pb2.Reshard) -> bool:
        """Tell whether there is nothing to do; what was begun for another reshard is ended."""
        staged = self._store.resharding.number
        if state.phase in _OVER or staged not in (0, state.number):
            self._settle()
        is_adopted = state.phase == _DONE and not staged and self._move is None
        return state.phase in _OVER or is_adopted

    def _is_part(self, state: reshard_pb2.Reshard) -> bool:
        if self._store.resharding.number == state.number:
            # A server that leaves is in neither map once the new one is known here.
            return True
        held = self._mesh.servers.held_map() or self._mesh.servers.refresh(self._mesh.deadline())
        return self._mesh.name in {*held.names, *(shard.name for shard in state.map.shards)}

    def _settle(self) -> None:
        """End a reshard that the coordinator speaks of no more.

        It was given up, unless the map has come that has no place for this server: the others do
        not wait until a leaving server has adopted it, and rows that were handed over must not
        change here.
        """
        resharding = self._store.resharding
        if self._move is not None:
            self._emptied_at = self._was_emptied_at
        if resharding.is_leaving:
            shards = self._mesh.servers.refresh(self._mesh.deadline())
            has_place = self._mesh.name in shards.names
            if not has_place and resharding.end_without_place(shards.epoch, len(shards.names)):
                self._emptied_at = time.monotonic()
        resharding.drop()
        if self._move is not None:
            self._move.close()
            self._move = None

    def _end(self) -> None:
        self._move = None
        held = self._mesh.servers.held_map()
        is_emptied = held is not None and self._mesh.name not in held.names
        self._emptied_at = time.monotonic() if is_emptied else None

    def _asking(self) -> reshard_pb2.ReportMoveRequest:
        return reshard_pb2.ReportMoveRequest(
            name=self._mesh.name, incarnation=self._mesh.incarnation
        )

    def _report(self, report: reshard_pb2.ReportMoveRequest, version: int) -> reshard_pb2.Reshard:
        report.version = version
        self._told_at = time.monotonic()
        state = self._mesh.coordinator.report_move(report, self._mesh.deadline(_CALL_S))
        if state.version == version and time.monotonic() - self._told_at < _PAUSE_S:
            # Too many wait there already.
            self._closed.wait(_PAUSE_S)
        return state

    def _tell(self) -> None:
        """Tell how far copying is; called now and then."""
        move = self._move
        if move is None or time.monotonic() - self._told_at < _TELL_S:
            return
        state = self._report(move.report, 0)
        if state.number != move.number or state.phase in _OVER or self._closed.is_set():
            raise ReshardAborted(f"reshard {move.number} was given up: {state.error}")

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(timeout_s)
