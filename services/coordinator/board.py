"""What the trainers report: how far they are and what came out. Pure."""

from typing import final

from gradmesh.protos.coordinator.v1 import status_pb2


@final
class Board:
    """The newest reports."""

    def __init__(self) -> None:
        self._progress: dict[str, status_pb2.Progress] = {}
        self.result: dict[str, float] = {}
        self.result_generation = 0

    def report(self, name: str, progress: status_pb2.Progress) -> None:
        """Keep a trainer's newest progress."""
        self._progress[name] = progress

    def progress(self, name: str) -> status_pb2.Progress | None:
        """Return a trainer's newest progress."""
        return self._progress.get(name)

    def forget(self, name: str) -> None:
        """Drop what a trainer that is gone reported."""
        self._progress.pop(name, None)

    def finish(self, generation: int, figures: dict[str, float]) -> None:
        """Keep the outcome of a run."""
        self.result = figures
        self.result_generation = generation
