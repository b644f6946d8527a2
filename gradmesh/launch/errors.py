"""What can go wrong with a cluster on this machine."""

from pathlib import Path
from typing import ClassVar, final


@final
class StateInUse(RuntimeError):
    """Another cluster runs in the state folder.

    Args:
        folder: The state folder.
        pid: Process id of the supervisor that holds it, if known.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, folder: Path, pid: int | None) -> None:
        holder = f" (supervisor process {pid})" if pid else ""
        super().__init__(
            f"state folder {str(folder)!r} is in use by another cluster{holder}; end it with "
            f"`gradmesh down --state {folder}`, or choose another folder with --state"
        )


@final
class NoCluster(RuntimeError):
    """No cluster runs in the state folder.

    Args:
        folder: The state folder.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"no cluster runs in state folder {str(folder)!r}; start one with "
            f"`gradmesh up --state {folder}`, or name the folder of a running one with --state"
        )


@final
class ClusterFailed(RuntimeError):
    """The cluster ended by itself, and not because its work was done.

    Args:
        reason: What happened, to which process, and what to do.
        exit_code: What the command should exit with.
        log_tail: Last lines of the process that failed.
    """

    def __init__(self, reason: str, exit_code: int, log_tail: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.exit_code = exit_code
        self.log_tail = log_tail
        # Where nobody shows the tail, the traceback does.
        for line in log_tail:
            self.add_note(line)
