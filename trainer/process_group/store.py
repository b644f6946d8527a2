"""What a process group needs to find its peers: a small shared key-value store.

A protocol rather than a base class, so that the coordinator's client fits without
importing this package. A store belongs to one generation: keys of an older one are not seen.
"""

import threading
import time
from pathlib import Path
from typing import Protocol, final

_LOOK_AGAIN_S = 0.005


class Store(Protocol):
    """Keys and values that all ranks of one generation share."""

    def set(self, key: str, value: bytes) -> None:
        """Publish a value; every rank that asks for the key MUST see it from then on."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """Return the value of a key, waiting until some rank has published it.

        Raises:
            TimeoutError: Nobody published the key in time.
        """


@final
class PrefixStore:
    """A part of another store, where keys begin with a prefix.

    Args:
        store: The whole store.
        prefix: What all keys begin with.
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
    """Keys and values as files of a folder that all ranks see, where there is no coordinator.

    Args:
        folder: An empty folder, for one generation only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, key: str, value: bytes) -> None:
        """Publish a value, put in place by one rename."""
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
                raise TimeoutError(f"nobody published {key!r} within {timeout_s} s")
            pause.wait(_LOOK_AGAIN_S)
        return path.read_bytes()

    def _path(self, key: str) -> Path:
        return self._folder / key.replace("/", ".")
