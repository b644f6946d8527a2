"""The work of one server in a reshard, phase by phase.

Each phase is idempotent; see docs/decisions/0023.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import final

from gradmesh.protos.coordinator.v1 import reshard_pb2
from gradmesh.protos.errors import MeshError, ReshardAborted
from gradmesh.protos.limits import shortened
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.cluster.connection import Connection
from gradmesh.sdk.cluster.servers import map_of
from gradmesh.sdk.process import fault
from gradmesh.sdk.transport.channel import Channel
from gradmesh.services.parameter_server.gate import Kind
from gradmesh.services.parameter_server.handover import Handover, pages, whole_tables
from gradmesh.services.parameter_server.store import TableStore

COPYING = reshard_pb2.RESHARD_PHASE_COPYING
STOPPING = reshard_pb2.RESHARD_PHASE_STOPPING
DRAINING = reshard_pb2.RESHARD_PHASE_DRAINING
SENDING = reshard_pb2.RESHARD_PHASE_SENDING
ADOPTING = reshard_pb2.RESHARD_PHASE_ADOPTING

# Rows that change meanwhile are copied again: at most `_ROUNDS` times, until `_FEW_ROWS` are left.
_ROUNDS = 4
_FEW_ROWS = 4096
# How long contexts outside a run may take to send their gradients.
_GRACE_S = 1.0
_POLL_S = 0.005
_SHUT_S = 5.0
_PREPARE_S = 0.2


@final
class Move:
    """One server's share of one reshard.

    Args:
        store: The store of the server.
        connection: The server's connection to the mesh.
        state: The reshard.
        on_progress: Called repeatedly while rows are copied; raises if the reshard was aborted.

    Attributes:
        number: Number of the reshard.
        report: The progress to report to the coordinator.
    """

    def __init__(
        self,
        store: TableStore,
        connection: Connection,
        state: reshard_pb2.Reshard,
        on_progress: Callable[[], object],
    ) -> None:
        self._store = store
        self._connection = connection
        self._on_progress = on_progress
        self.number = state.number
        self.report = reshard_pb2.ReportMoveRequest(
            name=connection.name, incarnation=connection.incarnation, reshard=state.number
        )
        self._then = map_of(state.map)
        self._now: ShardMap | None = None
        self._handover: Handover | None = None

    @property
    def done(self) -> int:
        """The last phase that this server has finished."""
        return self.report.done

    def do(self, state: reshard_pb2.Reshard) -> None:
        """Do this server's work of a phase.

        Raises:
            MeshError: It failed.
        """
        phase = state.phase
        fault.point(f"move-{phase_name(phase)}", state.number)
        if phase == COPYING and self.done < COPYING:
            self._copy()
        elif phase == STOPPING and self.done < STOPPING:
            self._stop()
        elif phase == DRAINING:
            self._drain(state)
        elif phase == SENDING and self.done < SENDING:
            self._send(state)
        elif phase >= ADOPTING and self.done < ADOPTING:
            self._adopt(state)

    @property
    def _holds(self) -> bool:
        """Whether this server is in the current map."""
        return self._now is not None and self._connection.name in self._now.names

    def _copy(self) -> None:
        """Send all rows to their new owners, then those that changed meanwhile."""
        name = self._connection.name
        self._now = now = self._connection.servers.refresh(self._connection.deadline())
        if now.epoch + 1 != self._then.epoch:
            raise ReshardAborted(
                f"shard map {now.epoch} is current, {self._then.epoch} was planned; scale again"
            )
        owned, held = self._then.owned_by(name), now.owned_by(name)
        self._store.resharding.begin(
            self.number,
            owned,
            owned & held,
            is_new=not self._holds,
            epoch=self._then.epoch,
            servers=len(self._then.names),
        )
        if self._holds:
            keep = self._store.resharding.keep
            self._handover = Handover(self.number, name, now, self._then, self._dial, keep)
            self._copy_all(self._handover)
            for _ in range(_ROUNDS):
                if self._copy_changed(self._handover) <= _FEW_ROWS:
                    break
        self.report.done = COPYING

    def _dial(self, address: str, name: str) -> Channel:
        return self._connection.servers.dial(address, name)

    def _copy_all(self, handover: Handover) -> None:
        for table in self._store.tables():
            if not table.counts_uses:
                table.changes.migration.follow()
        buckets = int(handover.leaving.sum())
        for name, block, share in whole_tables(self._store, handover.held, counting=False):
            handover.send(name, block)
            self.report.buckets_moved = int(buckets * share)
            self._on_progress()
        self.report.buckets_moved = buckets

    def _copy_changed(self, handover: Handover) -> int:
        """Send the rows that changed since they were sent; return how many."""
        count = 0
        for table in self._store.tables():
            migration = table.changes.migration
            if table.counts_uses:
                continue
            if not migration.is_followed:
                # A table made since then: none of its rows has been sent.
                migration.follow()
                for _, block in pages(table, handover.held):
                    handover.send(table.name, block)
            changed = migration.take_changed()
            for begin in range(0, changed.size, _FEW_ROWS):
                handover.send(table.name, migration.rows_of(changed[begin : begin + _FEW_ROWS]))
            count += changed.size
        return count

    def _stop(self) -> None:
        """Let no new step or context begin."""
        if self._handover is not None:
            # Other servers may have copied longer: leave as little as possible for the last phase.
            self._copy_changed(self._handover)
            self._store.resharding.check_room()
            self._store.gate.shut(Kind.BEGINS, _SHUT_S)
            self.report.begun_steps, self.report.origin = self._store.steps.stop()
        self.report.done = STOPPING

    def _drain(self, state: reshard_pb2.Reshard) -> None:
        """Wait until the steps that have begun are prepared."""
        ended = True
        if self._handover is not None and state.HasField("step"):
            ended, self.report.generation = self._store.steps.hold_at(state.step, _PREPARE_S)
        self.report.done = DRAINING if ended else STOPPING

    def _send(self, state: reshard_pb2.Reshard) -> None:
        """Stop all changes, then send the rest."""
        handover = self._handover
        if handover is not None:
            store = self._store
            patience = time.monotonic() + _GRACE_S
            while store.contexts.expecting() and time.monotonic() < patience:
                time.sleep(_POLL_S)
            store.gate.shut(Kind.CHANGES, _SHUT_S)
            if state.HasField("step"):
                store.steps.finish(state.step)
            self._copy_changed(handover)
            for name, block, _ in whole_tables(store, handover.leaving, counting=True):
                handover.send(name, block)
            handover.send_marks(store)
            store.resharding.check_room(kept=True)
            # Once the new map is current, other servers change the rows that were sent.
            store.gate.shut(Kind.READS, _SHUT_S)
        self.report.done = SENDING

    def _adopt(self, state: reshard_pb2.Reshard) -> None:
        """Adopt the tables of the new map, and admit all calls again."""
        shards = self._connection.servers.refresh(self._connection.deadline())
        self._store.resharding.adopt(shards.epoch, alone=len(shards.names) == 1)
        self.report.done = ADOPTING
        self.close()

    def close(self) -> None:
        """Release steps, gate and channels; may be called twice."""
        self._store.steps.release()
        self._store.gate.open()
        if self._handover is not None:
            self._handover.close()


def phase_name(phase: int) -> str:
    """Return the name of a phase in logs and fault points."""
    return reshard_pb2.ReshardPhase.Name(phase).rpartition("_")[2].lower()


_log = logging.getLogger(__name__)

_POLL_RESHARD_S = 0.1
_REPORT_S = 0.3
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
    """The thread of a parameter server that takes part in reshards.

    Args:
        store: The store of the server.
        connection: The server's connection to the mesh.
    """

    def __init__(self, store: TableStore, connection: Connection) -> None:
        self._store = store
        self._connection = connection
        self._emptied_at: float | None = None
        self._was_emptied_at: float | None = None  # value before the reshard under way
        self._move: Move | None = None
        self._reported_at = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mover", daemon=True)
        self._thread.start()

    def is_emptied(self, for_s: float) -> bool:
        """Return whether the shard map has not included this server for `for_s`."""
        emptied_at = self._emptied_at
        return emptied_at is not None and time.monotonic() - emptied_at >= for_s

    def _run(self) -> None:
        while not self._closed.wait(_POLL_RESHARD_S):
            if not self._connection.reshard and not self._store.resharding.is_staging:
                continue
            try:
                self._take_part()
            except MeshError as error:
                # Usually the coordinator is restarting.
                if not self._closed.is_set():
                    _log.warning("reshard goes on later", extra={"error": error.message})
            except Exception:
                _log.exception("reshard goes on later")

    def _take_part(self) -> None:
        """Follow a reshard until it ends, or until this server has no further work."""
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
                self._move = Move(self._store, self._connection, state, self._report_progress)
                self._was_emptied_at, self._emptied_at = self._emptied_at, None
            state = self._do(self._move, state)

    def _do(self, move: Move, state: reshard_pb2.Reshard) -> reshard_pb2.Reshard:
        """Do the work of a phase and report it; return the next state."""
        if state.phase >= ADOPTING:
            move.do(state)
            state = self._report(move.report, state.version)
            if state.phase == _DONE:
                self._end()
            return state
        try:
            move.do(state)
        except Exception as error:
            why = error.message if isinstance(error, MeshError) else repr(error)
            _log.warning(
                "reshard cannot go on", extra={"error": why, "phase": phase_name(state.phase)}
            )
            move.report.error = shortened(why)
        return self._report(move.report, state.version if move.done >= state.phase else 0)

    def _is_over(self, state: reshard_pb2.Reshard) -> bool:
        """Return whether there is no work; end what was begun for another reshard."""
        staged = self._store.resharding.number
        if state.phase in _OVER or staged not in (0, state.number):
            self._end_stale()
        is_adopted = state.phase == _DONE and not staged and self._move is None
        return state.phase in _OVER or is_adopted

    def _is_part(self, state: reshard_pb2.Reshard) -> bool:
        if self._store.resharding.number == state.number:
            # A leaving server is in neither map once it holds the new one.
            return True
        held = self._connection.servers.held_map() or self._connection.servers.refresh(
            self._connection.deadline()
        )
        return self._connection.name in {*held.names, *(shard.name for shard in state.map.shards)}

    def _end_stale(self) -> None:
        """End a reshard that is not the coordinator's current one any more.

        It was aborted, unless the current map does not include this server. The other servers do
        not wait until a leaving server has adopted the map, and rows that were handed over must
        not change here.
        """
        resharding = self._store.resharding
        if self._move is not None:
            self._emptied_at = self._was_emptied_at
        if resharding.is_leaving:
            shards = self._connection.servers.refresh(self._connection.deadline())
            is_in_map = self._connection.name in shards.names
            if not is_in_map and resharding.end_as_leaver(shards.epoch, len(shards.names)):
                self._emptied_at = time.monotonic()
        resharding.drop()
        if self._move is not None:
            self._move.close()
            self._move = None

    def _end(self) -> None:
        self._move = None
        held = self._connection.servers.held_map()
        is_emptied = held is not None and self._connection.name not in held.names
        self._emptied_at = time.monotonic() if is_emptied else None

    def _asking(self) -> reshard_pb2.ReportMoveRequest:
        return reshard_pb2.ReportMoveRequest(
            name=self._connection.name, incarnation=self._connection.incarnation
        )

    def _report(self, report: reshard_pb2.ReportMoveRequest, version: int) -> reshard_pb2.Reshard:
        report.version = version
        self._reported_at = time.monotonic()
        state = self._connection.coordinator.report_move(report, self._connection.deadline(_CALL_S))
        if state.version == version and time.monotonic() - self._reported_at < _PAUSE_S:
            # The coordinator has too many waiters.
            self._closed.wait(_PAUSE_S)
        return state

    def _report_progress(self) -> None:
        """Report the progress of copying, at most once in `_REPORT_S`."""
        move = self._move
        if move is None or time.monotonic() - self._reported_at < _REPORT_S:
            return
        state = self._report(move.report, 0)
        if state.number != move.number or state.phase in _OVER or self._closed.is_set():
            raise ReshardAborted(f"reshard {move.number} was aborted: {state.error}")

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(timeout_s)
