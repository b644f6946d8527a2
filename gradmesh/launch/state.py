"""The state folder of a local cluster: a lock, a record of the processes, and the logs.

Only its user can enter it, and read its files.

<state>/lock                  held (flock) by the supervisor while it lives
<state>/cluster.json          process ids and addresses, replaced as a whole
<state>/token                 the cluster's random token, if none is configured
<state>/coordinator.address   written by the coordinator once it serves
<state>/coordinator/          the coordinator's state across its restarts
<state>/parameter-servers/    the log of each parameter server
<state>/servers.wanted        wanted number of parameter servers, once they were scaled
<state>/logs/<name>.log       output of each process
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import signal
import time
from pathlib import Path
from typing import IO, Any, final

from gradmesh.launch.errors import StateInUse
from gradmesh.sdk.process.bounded_file import read_bounded, read_json
from gradmesh.sdk.process.local_token import PublishedToken
from gradmesh.sdk.process.private import (
    make_private_folder,
    new_token,
    open_private,
    write_private,
)

_log = logging.getLogger(__name__)

_ORPHAN_S = 15.0
_MAX_RECORD_BYTES = 4 << 20
_MAX_LINE_BYTES = 4096
_CHILD: dict[str, type] = {"name": str, "role": str, "state": str, "restarts": int}


@final
class StateFolder:
    """A folder for one cluster at a time.

    Args:
        path: The folder; made by `lock` if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.logs = self.path / "logs"
        self.coordinator = self.path / "coordinator"
        self.parameter_servers = self.path / "parameter-servers"
        self.token_file = self.path / "token"
        self.address_file = self.path / "coordinator.address"
        self._record_file = self.path / "cluster.json"
        self._wanted_file = self.path / "servers.wanted"
        self._lock_file = self.path / "lock"
        self._lock: IO[bytes] | None = None
        self._published: PublishedToken | None = None

    def make(self) -> None:
        """Make the folder and that of the logs, and close them to other users.

        Raises:
            UnsafeFolder: It belongs to another user, or users share it.
        """
        for folder in (self.path, self.logs):
            make_private_folder(folder)

    def lock(self) -> bool:
        """Lock the folder for this process and clean up after a dead supervisor.

        Returns:
            Whether a dead supervisor had left something.

        Raises:
            StateInUse: Another supervisor holds it.
            UnsafeFolder: It belongs to another user, or users share it.
        """
        self.make()
        lock = open_private(self._lock_file, "ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise StateInUse(self.path, self.supervisor_pid()) from None
        self._lock = lock
        left = self.read()
        _end_orphans(left)
        self._clean()
        return left is not None

    def unlock(self) -> None:
        """Release the folder; logs remain. May be called twice."""
        if self._lock is not None:
            if self._published is not None:
                self._published.close()
                self._published = None
            self._clean()
            self._lock.close()
            self._lock = None

    def in_use(self) -> bool:
        """Return whether a supervisor holds the folder."""
        if self._lock is not None:
            return True
        try:
            with self._lock_file.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def write(self, record: dict[str, Any]) -> None:
        """Replace cluster.json."""
        write_private(self._record_file, json.dumps(record, indent=2) + "\n")

    def read(self) -> dict[str, Any] | None:
        """Return cluster.json, or None if it is missing, unreadable or not a supervisor's."""
        try:
            record = read_json(self._record_file, _MAX_RECORD_BYTES)
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) and _is_record(record) else None

    def supervisor_pid(self) -> int | None:
        """Return the process id in cluster.json."""
        pid = (self.read() or {}).get("pid")
        return pid if isinstance(pid, int) else None

    def address(self) -> str | None:
        """Return the coordinator's address; None before it serves."""
        try:
            return read_bounded(self.address_file, _MAX_LINE_BYTES).decode().strip() or None
        except (OSError, ValueError):
            return None

    def make_token(self) -> None:
        """Write a new random token for the processes of the cluster."""
        write_private(self.token_file, new_token() + "\n")

    def publish_token(self, address: str) -> None:
        """Let this user's processes find the token by the coordinator's address.

        It is called by the supervisor for its coordinator, so one address is all there is.
        """
        if self._published is not None or not self.token_file.exists():
            return
        token = self.token_file.read_text(encoding="ascii").strip()
        try:
            self._published = PublishedToken(address, token)
        except OSError as error:
            # Another user may have taken the name of the folder; the cluster itself can run.
            _log.warning(
                "clients cannot find the token by the address; give them the file",
                extra={"token_file": str(self.token_file), "error": str(error)},
            )

    def want_servers(self, count: int) -> None:
        """Set the number of parameter servers that the supervisor runs."""
        write_private(self._wanted_file, f"{count}\n")

    def wanted_servers(self) -> int | None:
        """Return the number of parameter servers last set; None if never."""
        try:
            return int(read_bounded(self._wanted_file, _MAX_LINE_BYTES))
        except (OSError, ValueError):
            return None

    def log_file(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.logs / f"{name}.log"

    def tail(self, name: str, lines: int = 20) -> tuple[str, ...]:
        """Return the last lines of a process's log."""
        try:
            with self.log_file(name).open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - (1 << 16)))
                return tuple(log.read().decode(errors="replace").splitlines()[-lines:])
        except OSError:
            return ()

    def _clean(self) -> None:
        for file in (self._record_file, self.address_file, self._wanted_file, self.token_file):
            file.unlink(missing_ok=True)
        for folder in (self.coordinator, self.parameter_servers):
            shutil.rmtree(folder, ignore_errors=True)


def _is_record(record: dict[str, Any]) -> bool:
    """Return whether a record has the types that a supervisor writes."""
    children = record.get("children", [])
    return (
        isinstance(record.get("address"), str | None)
        and isinstance(children, list)
        and all(
            isinstance(child, dict)
            and all(isinstance(child.get(key, kind()), kind) for key, kind in _CHILD.items())
            and type(child.get("pid")) in (int, type(None))
            for child in children
        )
    )


def start_ticks(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot; id and time identify a process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the command in parentheses and may hold spaces.
    return int(stat.rpartition(")")[2].split()[19])


def _end_orphans(record: dict[str, Any] | None) -> None:
    """Wait for the children of a dead supervisor, which end by their lifeline; kill the rest."""
    children = (record or {}).get("children", [])
    deadline = time.monotonic() + _ORPHAN_S
    for child in children if isinstance(children, list) else []:
        pid, ticks = child.get("pid"), child.get("start_ticks")
        while isinstance(pid, int) and ticks is not None and start_ticks(pid) == ticks:
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                break
            time.sleep(0.05)
