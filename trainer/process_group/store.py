"""The rendezvous store of a process group: a small shared key-value store.

A protocol rather than a base class, so that the coordinator's client implements it without
importing this package. A store belongs to one generation: keys of an older one are not visible.
"""

import threading
import time
from pathlib import Path
from typing import Protocol, final

from gradmesh.trainer.errors import CollectiveTimeout

_POLL_S = 0.005


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

    Args:
        folder: An empty folder, for one generation only.

    Raises:
        TypeError: If folder is not a path.
    """

    def __init__(self, folder: str | Path) -> None:
        if not isinstance(folder, (str, Path)):
            raise TypeError(
                f"FileStore takes the path of a folder as str or Path, not {type(folder).__name__}"
            )
        self._folder = Path(folder)

    def set(self, key: str, value: bytes) -> None:
        """Publish a value, atomically by a rename."""
        path = self._path(key)
        new = path.with_name(f".{path.name}")
        new.write_bytes(value)
        new.rename(path)

    def get(self, key: str, timeout_s: float) -> bytes:
        """Return the value of a key, waiting for it."""
        path = self._path(key)
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rank published {key!r} within {timeout_s} s")
            pause.wait(_POLL_S)
        return path.read_bytes()

    def _path(self, key: str) -> Path:
        return self._folder / key.replace("/", ".")


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
