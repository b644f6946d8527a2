"""Errors of launchers."""

from pathlib import Path
from typing import ClassVar, Self, final

from gradmesh.base_error import GradmeshError


@final
class StateInUse(RuntimeError, GradmeshError):
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
class NoCluster(RuntimeError, GradmeshError):
    """No cluster runs in the given place.

    Args:
        place: State folder, engine or namespace.
        options: Options of `gradmesh up` that start one there.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, place: str, options: str) -> None:
        super().__init__(
            f"no cluster runs in {place}; start one with `gradmesh up {options}`, "
            "or name a running one with the same options"
        )

    @classmethod
    def in_folder(cls, folder: Path) -> Self:
        """Return the error of a state folder without a cluster."""
        return cls(f"state folder {str(folder)!r}", f"--state {folder}")


@final
class ClusterExists(RuntimeError, GradmeshError):
    """A cluster already runs in the given place.

    Args:
        place: Engine or namespace.
        options: Options of `gradmesh down` that end it.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, place: str, options: str) -> None:
        super().__init__(
            f"a cluster runs already in {place}; end it with `gradmesh down {options}`, "
            "or choose another name with --name"
        )


@final
class CannotScale(RuntimeError, GradmeshError):
    """A launcher cannot change the number of processes of a role.

    Args:
        role: Role of the processes.
        reason: Why not, and the remedy.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, role: str, reason: str) -> None:
        super().__init__(f"cannot change the number of {role} processes: {reason}")


@final
class ClusterFailed(RuntimeError, GradmeshError):
    """The cluster ended before its work was done.

    Args:
        reason: What happened, to which process, and what to do.
        exit_code: Exit code of the command.
        log_tail: Last lines of the process that failed.
    """

    def __init__(self, reason: str, exit_code: int, log_tail: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.exit_code = exit_code
        self.log_tail = log_tail
        # A traceback shows the tail where the command line does not.
        for line in log_tail:
            self.add_note(line)
