"""Tokens of clusters on this machine, which other processes of the same user find by address.

`gradmesh up` and `LocalCluster` make a random token. So that `gm.connect(address)` needs no further
argument, the cluster publishes it to its user: a file named by the coordinator's address, in a
folder that only this user can enter. The file is locked while its process lives; an unlocked one
was left by a process that was killed, and is ignored.
"""

import atexit
import contextlib
import dataclasses
import fcntl
import os
import secrets
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, final

from gradmesh.sdk.process.network import SecurityConfig, is_loopback, join, split
from gradmesh.sdk.process.private import (
    UnsafeFolder,
    is_private,
    make_private_folder,
    open_private,
)

_SEPARATOR = "#"
_SAME_HOST = ("localhost", "127.0.0.1", "::1")


@final
class PublishedToken:
    """A token that processes of this user find by the coordinator's address, until it is closed.

    Args:
        address: The coordinator's address, as clients on this machine give it.
        token: The token.

    Attributes:
        path: The file with the token.

    Raises:
        UnsafeFolder: No folder for it belongs to this user alone.
        OSError: The file cannot be written.
    """

    def __init__(self, address: str, token: str) -> None:
        self.token = token
        folder = _make_folder()
        _remove_stale(folder)
        # Several processes may publish one cluster's token: each has a file of its own.
        name = f"{address}{_SEPARATOR}{os.getpid()}-{secrets.token_hex(4)}"
        self.path = folder / name
        draft = folder / f".{name}"
        self._file: IO[bytes] = open_private(draft, "wb")
        try:
            # Locked before it has its name, so that no reader takes it for a stale one.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.write(token.encode() + b"\n")
            self._file.flush()
            draft.replace(self.path)
        except BaseException:
            self._file.close()
            draft.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Remove the file; may be called twice."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                self.path.unlink()
            self._file.close()


_lasting: dict[str, PublishedToken] = {}
_guard = threading.Lock()  # guards _lasting


def publish_until_exit(address: str, token: str) -> None:
    """Publish the token of a cluster that outlives this process, until the process ends.

    Args:
        address: The coordinator's address on this machine.
        token: The token; it replaces an earlier one of the address.

    Raises:
        UnsafeFolder: No folder for it belongs to this user alone.
        OSError: The file cannot be written.
    """
    with _guard:
        former = _lasting.get(address)
        if former is not None and former.token == token:
            return
        _lasting[address] = PublishedToken(address, token)
        atexit.register(_lasting[address].close)
        if former is not None:
            former.close()


def with_local_token(security: SecurityConfig | None, coordinator: str) -> SecurityConfig:
    """Return settings with the token of the cluster on this machine, if they have none.

    Args:
        security: The settings of this process.
        coordinator: Address of the coordinator; one beyond this machine changes nothing.
    """
    given = security or SecurityConfig()
    if given.token_file is not None or given.tokens_file is not None:
        return given
    found = find_token(coordinator)
    return given if found is None else dataclasses.replace(given, token_file=found)


def find_token(coordinator: str) -> Path | None:
    """Return the file with the token of a cluster that runs on this machine, if it published one.

    Args:
        coordinator: Address of its coordinator.
    """
    try:
        local = is_loopback(coordinator)
    except ValueError:
        return None  # the connection reports the error
    if not local:
        return None
    host, port = split(coordinator)
    hosts = (host, *_SAME_HOST) if host in _SAME_HOST else (host,)
    for folder in _folders():
        prefixes = tuple(join(name, port) + _SEPARATOR for name in hosts)
        for file in _newest_first(folder, prefixes):
            if _is_live(folder, file):
                return file
    return None


def _folders() -> Iterator[Path]:
    """Yield the folders for tokens, the preferred one first."""
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    if session.startswith("/"):
        yield Path(session) / "gradmesh"
    yield Path(tempfile.gettempdir()) / f"gradmesh-{os.geteuid()}"


def _newest_first(folder: Path, prefixes: tuple[str, ...]) -> list[Path]:
    """Return the files whose names begin with a prefix; a live one may be of a former cluster."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(prefixes):
                found.append((entry.stat(follow_symlinks=False).st_mtime_ns, Path(entry.path)))
    return [file for _, file in sorted(found, reverse=True)]


def _make_folder() -> Path:
    problems = []
    for folder in _folders():
        try:
            make_private_folder(folder, may_be_link=False)
        except OSError as error:
            problems.append(error)
        else:
            return folder
    raise next((p for p in problems if isinstance(p, UnsafeFolder)), problems[-1])


def _remove_stale(folder: Path) -> None:
    """Remove the files of clusters that were killed; a file being written begins with a dot."""
    for file in folder.iterdir():
        if not file.name.startswith(".") and not _is_live(folder, file):
            with contextlib.suppress(OSError):
                file.unlink()


def _is_live(folder: Path, file: Path) -> bool:
    """Return whether a running cluster of this user wrote a file."""
    try:
        # Another user may have made the folder, or put a link there.
        seen = folder.lstat()
        if not stat.S_ISDIR(seen.st_mode) or not is_private(seen):
            return False
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        seen = os.fstat(handle)
        if not stat.S_ISREG(seen.st_mode) or not is_private(seen):
            return False
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
