"""The job: generation after generation of trainers until the last step.

When a peer or a server is lost, the trainer joins again with the dense part that it holds. The run
resumes at the step that all servers have: no step is applied twice, none is skipped.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from typing import final

from gradmesh.protos.errors import (
    ContextReleased,
    DeadlineExceeded,
    JobDone,
    LookupNotFound,
    MeshError,
    NotMember,
    Retry,
    RunLost,
)
from gradmesh.sdk.cluster.membership import Membership
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.process import fault
from gradmesh.trainer.errors import CollectiveTimeout, HandshakeRefused, PeerLost, TrainersMissing
from gradmesh.trainer.job.checkpoints import Checkpoints
from gradmesh.trainer.job.dense import DenseState
from gradmesh.trainer.job.run import TrainingRun
from gradmesh.trainer.job.saved_model import described
from gradmesh.trainer.job.spec import JobSpec
from gradmesh.trainer.process_group import Backend, Endpoint

_log = logging.getLogger(__name__)

# Join in short calls, so that a trainer that waits for peers still ends on SIGTERM.
_JOIN_CALL_S = 2.0

_LOST = (
    PeerLost,
    CollectiveTimeout,
    HandshakeRefused,
    NotMember,
    ContextReleased,
    LookupNotFound,
    DeadlineExceeded,
    RunLost,
)


def is_recoverable(error: Exception) -> bool:
    """Return whether joining again can help: something was lost, nothing was wrong."""
    if isinstance(error, _LOST):
        return True
    return isinstance(error, MeshError) and error.retry is not Retry.NEVER


@final
class Job:
    """Trains until a run is complete.

    Args:
        mesh: The mesh, joined as a trainer.
        spec: What to train.
        endpoint: Where this trainer listens for its peers.
        join_timeout_s: Seconds to wait for the other trainers.
        backend: How trainers exchange gradients.
        is_stopping: True once the process must end.
    """

    def __init__(
        self,
        mesh: Mesh,
        spec: JobSpec,
        *,
        endpoint: Endpoint,
        join_timeout_s: float,
        backend: Backend = "auto",
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._mesh = mesh
        self._spec = spec
        self._endpoint = endpoint
        self._join_timeout_s = join_timeout_s
        self._backend = backend
        self._is_stopping = is_stopping
        self._source = spec.source()
        # The dense part that the last generation left.
        self._held: DenseState | None = None
        about = described(spec, self._source.fields)
        vocabulary = spec.data.vocabulary if spec.data.ids == "vocabulary" else None
        self._checkpoints = Checkpoints(mesh, spec.job, about, vocabulary)

    def run(self) -> dict[str, float] | None:
        """Train; return the metrics of the result, or None when stopped before the end.

        Raises:
            MeshError: An error that joining again cannot repair, or too many restarts.
            ConnectionError: Peers were lost too often.
            TimeoutError: Peers did not join, or did not answer too often.
        """
        with contextlib.closing(self._checkpoints):
            return self._run_until_done()

    def _run_until_done(self) -> dict[str, float] | None:
        restarts = 0
        while True:
            try:
                return self._run_once()
            except Exception as error:
                if not is_recoverable(error) or restarts >= self._spec.job.max_restarts:
                    raise
                restarts += 1
                _log.warning(
                    "generation lost, joining again",
                    extra={
                        "error": str(error),
                        "kind": type(error).__name__,
                        "restarts": restarts,
                    },
                )

    def _run_once(self) -> dict[str, float] | None:
        membership = self._join()
        if membership is None:
            return None
        fault.point("joined", membership.generation)
        _log.info(
            "joined",
            extra={
                "generation": membership.generation,
                "rank": membership.rank,
                "world_size": membership.world_size,
            },
        )
        with TrainingRun(
            self._mesh,
            membership,
            self._spec,
            self._source,
            self._endpoint,
            self._backend,
            held=self._held,
            checkpoints=self._checkpoints,
        ) as run:
            try:
                return run.train(self._is_stopping)
            except Exception:
                self._held = run.state()
                raise

    def _join(self) -> Membership | None:
        """Join a new generation; return None when stopped, or when the job is done."""
        deadline = time.monotonic() + self._join_timeout_s
        while not self._is_stopping():
            left_s = deadline - time.monotonic()
            try:
                wait_s = min(_JOIN_CALL_S, max(left_s, 0.1))
                return self._mesh.connection.join_trainers(wait_s, self._spec.job.id or "")
            except JobDone as done:
                _log.info("nothing left to do", extra={"reason": done.message})
                return None
            except DeadlineExceeded as error:
                if left_s <= _JOIN_CALL_S:
                    raise TrainersMissing(
                        f"waited {self._join_timeout_s} s for the other trainers:"
                        f" {error.message}; start them, or raise trainer.join_timeout_s"
                    ) from error
        return None
