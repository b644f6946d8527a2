"""Train a job on a cluster of its own on Kubernetes, and write its report on this machine."""

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, final

from gradmesh.launch.errors import ClusterFailed
from gradmesh.launch.kubernetes.errors import NotOnKubernetes
from gradmesh.launch.kubernetes.files import Files, files_of
from gradmesh.launch.kubernetes.launcher import KubernetesLauncher
from gradmesh.launch.launcher import ClusterRequest
from gradmesh.launch.training import prepare, with_last_progress
from gradmesh.protos.errors import MeshError
from gradmesh.sdk.cluster.status import ClusterStatus, fetch
from gradmesh.sdk.process.bounded_file import parse_json
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.trainer.job.metrics_log import METRICS_FILE
from gradmesh.trainer.job.report import write_report
from gradmesh.trainer.job.spec import JobSpec

_POLL_S = 0.5
_ASK_S = 5.0
_FIRST = "trainer-0"
# Messages of the trainers' log, and their kinds in the job's history.
_KINDS = {"trained": "train", "validated": "validation"}
_HEAD = ("ts", "level", "role", "name", "message", "step")


def cluster_name(config: Path) -> str:
    """Return the cluster name for a job's file: a DNS label derived from the file's name."""
    stem = config.stem if config.stem != "job" else config.absolute().parent.name
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-")
    return name if name[:1].isalpha() else f"job-{name}".strip("-")


def collect(
    config: Path, spec: JobSpec, imports: tuple[str, ...], secrets: Sequence[Path] = ()
) -> Files:
    """Check and return the files of this machine that the pods need.

    Args:
        config: The job's file.
        spec: The job.
        imports: Modules that trainers import.
        secrets: Files of tokens and keys, which are never sent.

    Raises:
        ConfigError: The job's file names secrets.
        NotOnKubernetes: The job would write to a folder that pods lack.
        DataError: The included data cannot be used.
        FilesTooBig: They do not fit.
    """
    place = spec.job.checkpoint_path
    if place is not None and "://" not in place and not place.startswith("/"):
        raise NotOnKubernetes(
            f"job.checkpoint_path is {place!r}, a folder of this machine; give the URL of a bucket,"
            " or the absolute path of a volume that the trainers mount"
        )
    named = (*spec.data.train, *spec.data.validation, *spec.data.test)
    if all(Path(path).is_relative_to(config.absolute().parent) for path in named):
        prepare(spec)
    module, colon, _ = spec.model.name.partition(":")
    return files_of(config, (*imports, *((module,) if colon else ())), secrets)


@final
class RemoteTraining:
    """A job that a cluster of its own trains.

    Args:
        launcher: Launcher of the cluster.
        security: Credentials for its coordinator.
    """

    def __init__(self, launcher: KubernetesLauncher, security: SecurityConfig) -> None:
        self._launcher = launcher
        self._security = security
        self.history = LogHistory()
        self.figures: dict[str, float] = {}
        self._reader = threading.Thread(target=self._read, name="kubernetes-history", daemon=True)

    def watch(
        self, request: ClusterRequest, files: Files, is_stopping: Callable[[], bool]
    ) -> Iterator[ClusterStatus]:
        """Create the cluster and yield its status until its trainers are done.

        Raises:
            ClusterFailed: The Job failed; has the tail of the last trainer's log.
        """
        yield ClusterStatus()
        address = self._launcher.create(request, files, is_stopping)
        self._reader.start()
        status = ClusterStatus()
        while not is_stopping():
            pods = self._launcher.pods()
            if (why := pods.failure()) is not None:
                tail = self._launcher.tail_of_failed()
                raise ClusterFailed(f"the trainers were given up: {why}", 4, tail)
            if (stuck := pods.stuck()) is not None:
                tail = self._launcher.tail_of_failed()
                raise ClusterFailed(f"{stuck[0]} does not start: {stuck[1]}", 4, tail)
            done = all(view.state == "done" for view in pods.views() if view.role == "trainer")
            # The coordinator may be restarting; the pods show whether the cluster is lost.
            with contextlib.suppress(MeshError):
                status = with_last_progress(status, fetch(address, self._security, _ASK_S))
            yield status
            if done:
                # The log ends with the pod.
                self._reader.join(_ASK_S)
                self.figures = dict(status.result) or self.history.figures
                return
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Wait for the reader of the log, once the cluster is removed.

        A thread inside a connection at the interpreter's exit can crash the process.
        """
        if self._reader.is_alive():
            self._reader.join(_ASK_S)

    def write(self, output: Path, spec: JobSpec) -> None:
        """Write metrics and report into a folder of this machine."""
        output.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(line) + "\n" for line in self.history.lines)
        (output / METRICS_FILE).write_text(lines, encoding="utf-8")
        write_report(output, spec.as_dict(), self.figures, self.history.lines)

    def _read(self) -> None:
        """Collect the history from the log of the first trainer."""
        try:
            for _, line in self._launcher.logs([_FIRST], follow=True):
                self.history.add(line)
        except (OSError, RuntimeError):
            # Without its log a job has a result but no curves.
            return


@final
class LogHistory:
    """The history of a job, parsed from a trainer's log.

    Attributes:
        lines: As in metrics.jsonl.
        figures: The result, once it exists.
    """

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.figures: dict[str, float] = {}

    def add(self, line: str) -> None:
        """Add a line of the log; others than a trainer's own are left out."""
        # A user's module prints to the same log.
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            self._add(parse_json(line))

    def _add(self, said: Mapping[str, Any]) -> None:
        message, step = said["message"], said.get("step")
        if message == "done" and "figures" in said:
            figures = dict(said["figures"])
            self.lines.append({"kind": "result", "time": _time(said), **figures})
            self.figures = figures
        elif message in _KINDS and isinstance(step, int):
            values = {key: value for key, value in said.items() if key not in _HEAD}
            entry = {"kind": _KINDS[message], "step": step, "time": _time(said), **values}
            # After a fault the last reports are repeated.
            self.lines = [old for old in self.lines if _is_before(old, _KINDS[message], step)]
            self.lines.append(entry)


def _is_before(old: Mapping[str, Any], kind: str, step: int) -> bool:
    at = int(old.get("step", -1))
    return at < step or (at == step and old["kind"] != kind)


def _time(said: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(said["ts"]).timestamp()
