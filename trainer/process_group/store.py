"""The rendezvous store of a process group: a small shared key-value store.

A protocol rather than a base class, so that the coordinator's client implements it without
importing this package. A store belongs to one generation: keys of an older one are not visible.
"""

import contextlib
import hashlib
import os
import secrets
import stat
import threading
import time
from pathlib import Path
from typing import Protocol, final
from urllib.parse import quote

from gradmesh.trainer.errors import CollectiveTimeout

_POLL_S = 0.005
_MAX_VALUE_BYTES = 1 << 24
_MAX_NAME = 200


class Store(Protocol):
    """The rendezvous store: keys and values that all ranks of one generation share."""

    def set(self, key: str, value: bytes) -> None:
        """Publish a value; from then on every rank MUST get it."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """Return the value of a key, waiting until some rank has published it.

        Raises:
            TimeoutError: No rank published the key in time.
        """


@final
class PrefixStore:
    """A namespace of another store: all keys get a prefix.

    Args:
        store: The whole store.
        prefix: The prefix of all keys.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def set(self, key: str, value: bytes) -> None:
        """Publish a value."""
        self._store.set(f"{self._prefix}/{key}", value)

    def get(self, key: str, timeout_s: float) -> bytes:
        """Return the value of a key, waiting for it."""
        return self._store.get(f"{self._prefix}/{key}", timeout_s)


@final
class FileStore:
    """A rendezvous store of files in a folder that all ranks share; needs no coordinator.

    Values include the secret of the group: only their owner can read the files, and files of
    another user are not believed.

    Args:
        folder: An empty folder, for one generation only; made if it does not exist.

    Raises:
        TypeError: If folder is not a path.
    """

    def __init__(self, folder: str | Path) -> None:
        if not isinstance(folder, (str, Path)):
            raise TypeError(
                f"FileStore takes the path of a folder as str or Path, not {type(folder).__name__}"
            )
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def set(self, key: str, value: bytes) -> None:
        """Publish a value, atomically by a rename."""
        path = self._path(key)
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(new, "wb", opener=lambda name, _: os.open(name, flags, 0o600)) as file:
            file.write(value)
        new.rename(path)

    def get(self, key: str, timeout_s: float) -> bytes:
        """Return the value of a key, waiting for it.

        Raises:
            TimeoutError: No rank published the key in time.
            PermissionError: Another user wrote the file.
        """
        path = self._path(key)
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        while True:
            with contextlib.suppress(FileNotFoundError):
                return _read_own(path)
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rank published {key!r} within {timeout_s} s")
            pause.wait(_POLL_S)

    def _path(self, key: str) -> Path:
        # Escaped, so that every key is one file of the folder; hashed if that is too long for one.
        name = quote(key, safe="")
        if len(name) > _MAX_NAME:
            name = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / f"{name}.value"


def _read_own(path: Path) -> bytes:
    """Return the content of a file that this user wrote."""
    # Without blocking: a pipe in its place would wait for ever.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
            raise PermissionError(
                f"{path} is not a file of this user; give the ranks a folder that only they can"
                " write to"
            )
        return file.read(_MAX_VALUE_BYTES)


def get_from_rank(store: Store, key: str, rank: int, deadline: float) -> bytes:
    """Return the value that a rank publishes.

    Raises:
        CollectiveTimeout: The rank did not publish it in time; names the rank.
    """
    try:
        return store.get(key, max(0.0, deadline - time.monotonic()))
    except TimeoutError as error:
        raise CollectiveTimeout(
            f"rank {rank} did not publish {key!r} in time; see whether it still runs, then rejoin",
            ranks=[rank],
        ) from error
