"""What a job tells about itself while it runs: lines of JSON, and TensorBoard's files if wanted."""

import json
import time
from pathlib import Path
from typing import IO, Any, final

from gradmesh.trainer.job.event_file import EventFile

METRICS_FILE = "metrics.jsonl"


@final
class History:
    """Writes one line for each report; only rank 0 has one.

    Args:
        folder: Where metrics.jsonl goes; made if it is missing. None writes nothing.
        tensorboard: Whether event files go there, too.
        step: The first step of this generation; lines of later ones are dropped, for they come
            again.
    """

    def __init__(self, folder: Path | None, tensorboard: bool, step: int) -> None:
        self._file: IO[str] | None = None
        self._events: EventFile | None = None
        self.lines: list[dict[str, Any]] = []
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS_FILE
        if step and path.exists():
            self.lines = [line for line in read_history(folder) if line["step"] <= step]
        self._file = path.open("w", encoding="utf-8")
        for line in self.lines:
            self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if tensorboard:
            self._events = EventFile(folder / "tensorboard")

    def add(self, kind: str, step: int, values: dict[str, float]) -> None:
        """Write values of a step.

        Args:
            kind: "train", "validation" or "result".
            step: How many steps are done.
            values: Numbers by name.
        """
        line = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        self.lines.append(line)
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        if self._events is not None:
            self._events.add(step, {f"{kind}/{name}": value for name, value in values.items()})

    def close(self) -> None:
        """Close the files; may be called twice."""
        if self._file is not None:
            self._file.close()
        if self._events is not None:
            self._events.close()


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a job so far; the last one may be on its way and is left out."""
    try:
        text = (folder / METRICS_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
