"""Checkpoints of a run: when one is due, and writing it in the background.

Rank 0 does it alone. Before the last step of a checkpoint it asks the servers to freeze once they
have applied that step. After the step it copies the dense part; a thread does the rest.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from gradmesh.protos.coordinator.v1 import status_pb2, table_pb2
from gradmesh.protos.errors import BaseLost, CheckpointCorrupt, MeshError
from gradmesh.protos.frame import Array
from gradmesh.protos.limits import shortened
from gradmesh.sdk.checkpoint.manifest import Manifest, chain_of
from gradmesh.sdk.checkpoint.save import RunArrays, write
from gradmesh.sdk.checkpoint.snapshot import ProgressCounter, Snapshot
from gradmesh.sdk.checkpoint.store import (
    CheckpointStore,
    StoredCheckpoint,
    open_checkpoint,
    open_store,
)
from gradmesh.sdk.checkpoint.tensors import map_tensors
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.process import fault
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.dense import DenseState

_log = logging.getLogger(__name__)

_REPORT_S = 2.0
# How long training may wait for the servers to arm a checkpoint, and the pause after that failed:
# another process is copying the tables.
_ARM_S = 5.0
_PAUSE_S = 10.0
# How long, and how often, the last checkpoint is retried when a server was lost meanwhile.
_LAST_S = 60.0
_POLL_S = 0.5


@final
class Checkpoints:
    """Writes and reads the checkpoints of one job.

    Args:
        mesh: The mesh.
        config: The job; without a checkpoint_path nothing is written.
        settings: The job's settings and features as the manifest holds them.
        vocabulary: The file of the data's vocabulary, which every checkpoint gets a copy of.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        mesh: Mesh,
        config: JobConfig,
        settings: dict[str, Any],
        vocabulary: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mesh = mesh
        self._connection = connection = mesh.connection
        self._config = config
        self._settings = settings
        self._vocabulary = vocabulary
        self._clock = clock
        self._last_at = clock()
        self._pause_until = clock()
        self._answered = connection.checkpoint_request
        self._steps = config.steps
        where = config.checkpoint_path
        self._store = None if where is None else open_store(where)
        self._specs: list[table_pb2.TableSpec] = []
        # The newest checkpoint of this process, the base of the next delta, and its chain's length.
        self._newest: StoredCheckpoint | None = None
        self._chain = 0
        self._armed: tuple[int, Snapshot, StoredCheckpoint | None] | None = None
        self._thread: threading.Thread | None = None
        # The step of the newest checkpoint that this process has written or read.
        self._stored = 0
        self._tried_last = False
        self._begun_at = 0.0

    def begin(self, tables: list[table_pb2.TableSpec], steps: int) -> None:
        """Begin a run; drop the snapshot that an earlier one armed.

        Args:
            tables: The run's tables.
            steps: Of the whole job.
        """
        self._specs = tables
        self._steps = steps
        self._tried_last = False
        self._disarm()

    def before_step(self, step: int) -> None:
        """Ask the servers to freeze after this step, if a checkpoint is due then."""
        if self._store is None:
            self._refuse_requests()
            return
        if not self._is_due(step + 1):
            return
        is_last = step + 1 == self._steps
        if is_last:
            self.finish()  # the last one is never skipped
        if self.is_writing or (self._clock() < self._pause_until and not is_last):
            return
        kept = self._newest if self._chain < self._config.checkpoint_chain else None
        self._disarm()
        try:
            self._armed = step + 1, self._arm(step + 1, kept), kept
        except BaseLost:
            self._armed = step + 1, self._arm(step + 1, None), None
        except MeshError as error:
            # The step matters more, and meets the same fault.
            self._pause_until = self._clock() + _PAUSE_S
            _log.warning("no checkpoint", extra={"step": step + 1, "error": error.message})

    def _refuse_requests(self) -> None:
        request = self._connection.checkpoint_request
        if request > self._answered:
            self._answered = request
            why = "the job has no checkpoint_path; set it"
            self._report(status_pb2.Checkpoint(request=request, error=why))

    def _is_due(self, steps: int) -> bool:
        config = self._config
        return (
            (config.checkpoint_every_steps > 0 and steps % config.checkpoint_every_steps == 0)
            or (
                config.checkpoint_every_s > 0
                and self._clock() - self._last_at >= config.checkpoint_every_s
            )
            or self._connection.checkpoint_request > self._answered
            or steps == self._steps
        )

    def _arm(self, step: int, kept: StoredCheckpoint | None) -> Snapshot:
        return Snapshot.request(
            self._connection.servers,
            [spec.name for spec in self._specs],
            step,
            base="" if kept is None else kept.manifest.id,
            # The other trainers wait during this call.
            freeze_s=min(_ARM_S, self._config.collective_timeout_s / 4),
            call_s=self._connection.timeouts.call_s,
        )

    def after_step(self, state: Callable[[], DenseState], world_size: int) -> None:
        """Write the checkpoint that was armed before the step, in a thread.

        Args:
            state: Returns the dense part after the step.
            world_size: Trainers of the run.
        """
        if self._armed is None:
            return
        (step, snapshot, kept), self._armed = self._armed, None
        held = state()
        if held.steps != step:
            snapshot.close()
            return
        self._last_at = self._clock()
        self._start(snapshot, kept, held, world_size, is_last=step == self._steps)

    def complete(self, state: Callable[[], DenseState], world_size: int) -> bool:
        """Wait a moment for the checkpoint of the last step; begin it if needed.

        None may have been begun: a run may end early, or be taken over after its last step.

        Args:
            state: Returns the dense part; the servers have applied its last step.
            world_size: Trainers of the run.

        Returns:
            Whether nothing is left to do: it is written, or cannot be.
        """
        if self._store is None:
            return True
        if self._thread is not None:
            self._thread.join(_POLL_S)
            if self._thread.is_alive():
                return self._has_stalled()
        held = state()
        if self._tried_last or self._stored == held.steps:
            return True
        self._tried_last = True
        self._start(None, None, held, world_size, is_last=True)
        return False

    def _has_stalled(self) -> bool:
        """Return whether the checkpoint has taken longer than the longest wait for it."""
        longest_s = self._config.checkpoint_timeout_s + _LAST_S
        stalled = self._clock() - self._begun_at > longest_s
        if stalled:
            _log.warning("gave up waiting for the last checkpoint", extra={"seconds": longest_s})
        return stalled

    def _start(
        self,
        snapshot: Snapshot | None,
        kept: StoredCheckpoint | None,
        held: DenseState,
        world_size: int,
        is_last: bool,
    ) -> None:
        """Write a checkpoint in a thread."""
        request = self._answered = self._connection.checkpoint_request
        self._begun_at = self._clock()
        run = RunArrays(world_size, held.batches, self._settings, held.arrays, self._vocabulary)
        self._thread = threading.Thread(
            target=self._write,
            args=(snapshot, kept, run, request, held.steps if is_last else None),
            name="checkpoint",
            daemon=True,
        )
        self._thread.start()

    def _write(
        self,
        snapshot: Snapshot | None,
        kept: StoredCheckpoint | None,
        run: RunArrays,
        request: int,
        last: int | None,
    ) -> None:
        """Write a checkpoint; retry it if it is that of the last step, which is then `last`."""
        store = self._store
        assert store is not None
        begun, deadline = time.monotonic(), Deadline.after(self._config.checkpoint_timeout_s)
        written = None
        why = "the servers are not at the last step"
        if snapshot is not None:
            try:
                written = self._write_once(snapshot, kept, run, deadline)
            except (MeshError, OSError) as error:
                why = str(error)
                _log.warning("no checkpoint", extra={"error": why})
        if written is None and last is not None:
            kept = None
            written = self._write_again(last, run, deadline)
        if written is None:
            self._newest, self._chain = None, 0
            why = shortened(why)
            self._report(status_pb2.Checkpoint(request=request, error=why))
            return
        path, manifest, shown = written
        self._newest = StoredCheckpoint(path, manifest)
        self._stored = manifest.step
        self._chain = 0 if kept is None else self._chain + 1
        seconds = time.monotonic() - begun
        _log.info(
            "checkpoint written",
            extra={"path": shown, "step": manifest.step, "seconds": round(seconds, 2)},
        )
        self._report(_described(shown, manifest, seconds, request))
        try:
            store.prune(self._config.checkpoint_keep, self._config.checkpoint_keep_s)
        except (MeshError, OSError) as error:
            _log.warning("old checkpoints not removed", extra={"error": str(error)})

    def _write_once(
        self, snapshot: Snapshot, kept: StoredCheckpoint | None, run: RunArrays, deadline: Deadline
    ) -> tuple[Path, Manifest, str]:
        """Write a checkpoint; return its path, its manifest and its public name."""
        store = self._store
        assert store is not None
        with snapshot:
            snapshot.wait(deadline)
            fault.point("checkpoint", snapshot.step)
            path = store.free_path(snapshot.step)
            manifest = write(
                snapshot,
                self._specs,
                path,
                ProgressCounter(snapshot.rows, None, deadline),
                former=None if kept is None else kept.manifest,
                base=None if kept is None else kept.path,
                run=run,
            )
        return path, manifest, store.publish(path)

    def _write_again(
        self, step: int, run: RunArrays, deadline: Deadline
    ) -> tuple[Path, Manifest, str] | None:
        """Write the last checkpoint from the rows as they are: no step changes them any more."""
        patience = Deadline.after(min(_LAST_S, deadline.remaining_s()))
        names = [spec.name for spec in self._specs]
        servers, call_s = self._connection.servers, self._connection.timeouts.call_s
        while not patience.passed:
            try:
                snapshot = Snapshot.take(servers, names, freeze_s=call_s, call_s=call_s)
                if snapshot.step != step:
                    snapshot.close()
                    return None  # another job trains
                return self._write_once(snapshot, None, run, deadline)
            except (MeshError, OSError) as error:
                _log.warning("no checkpoint yet", extra={"error": str(error)})
                time.sleep(_POLL_S)
        return None

    def _report(self, checkpoint: status_pb2.Checkpoint) -> None:
        connection = self._connection
        try:
            connection.coordinator.report_checkpoint(
                connection.name, connection.incarnation, checkpoint, connection.deadline(_REPORT_S)
            )
        except MeshError as error:
            _log.warning("checkpoint not reported", extra={"error": error.message})

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._thread is not None:
            self._thread.join(self._config.checkpoint_timeout_s)

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and close the store."""
        self.finish()
        if self._store is not None:
            self._store.close()

    def _disarm(self) -> None:
        if self._armed is not None:
            self._armed[1].close()
            self._armed = None

    def restore(self, check: Callable[[dict[str, Array]], None]) -> DenseState | None:
        """Restore the tables from the newest checkpoint; return the dense part, None without one.

        Args:
            check: Raises ValueError if dense arrays are of another model.

        Raises:
            CheckpointCorrupt: It is damaged, or of another model; the message names the file.
                Nothing is changed.
        """
        found = self._find()
        if found is None:
            return None
        store, kept = found
        path = store.fetch(kept)
        manifest = chain_of(path)[-1][1]
        if manifest.run is None:
            raise CheckpointCorrupt(
                f"checkpoint {path} holds tables only; a run cannot resume from it", path=path
            )
        dense = manifest.run.dense.inside(path)
        arrays = {n: a.copy() for n, a in map_tensors(dense).items()}
        try:
            check(arrays)
        except ValueError as error:
            raise CheckpointCorrupt(f"checkpoint {dense}: {error}", path=dense) from error
        self._mesh.restore(path, timeout_s=self._config.checkpoint_timeout_s)
        self._stored = manifest.step
        _log.info("restored", extra={"path": str(path), "step": manifest.step})
        return DenseState(0, manifest.step, arrays, batches=manifest.run.batches)

    def _find(self) -> tuple[CheckpointStore, StoredCheckpoint] | None:
        resume, store = self._config.resume, self._store
        if store is not None and self._newest is not None:
            return store, self._newest
        if resume == "never":
            return None
        if resume == "auto":
            kept = None if store is None else store.newest_run()
            return None if store is None or kept is None else (store, kept)
        return open_checkpoint(resume)


def _described(
    path: str, manifest: Manifest, seconds: float, request: int
) -> status_pb2.Checkpoint:
    return status_pb2.Checkpoint(
        path=path,
        step=manifest.step,
        rows=manifest.rows,
        bytes=manifest.bytes,
        took_s=seconds,
        request=request,
    )
