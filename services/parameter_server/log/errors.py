"""What can be wrong with a log; never on the wire."""

from pathlib import Path
from typing import ClassVar, final

from gradmesh.sdk.process.process import UNRECOVERABLE


@final
class LogCorrupt(RuntimeError):
    """A log is damaged where it must not be, or belongs to another server.

    Args:
        path: The file.
        why: What is wrong with it.
    """

    exit_code: ClassVar[int] = UNRECOVERABLE

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        super().__init__(
            f"log {path}: {why}; restore a checkpoint into an empty parameter_server.state_dir"
        )
