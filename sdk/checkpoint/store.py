"""The checkpoint store of a job: a folder, or any URL that fsspec supports.

A checkpoint is written to a folder of this machine and read from one. In a local store it stays
there; to a URL it is copied afterwards, `COMPLETE` last, and back before it is read. In both it is
complete or invisible.
"""

import re
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, final

from gradmesh.protos.errors import CheckpointCorrupt, InvalidRequest
from gradmesh.sdk.checkpoint.manifest import (
    COMPLETE,
    MANIFEST,
    MAX_COMPLETE_BYTES,
    MAX_MANIFEST_BYTES,
    Manifest,
    check_chain,
    read_manifest,
)
from gradmesh.sdk.process.confined import confined

_CHUNK_BYTES = 4 << 20
_PARTIAL = re.compile(r"^\..+\.[0-9a-f]{8}\.partial$")


# The files that make a checkpoint complete, and the most that is read of them.
_SEALED = {COMPLETE: MAX_COMPLETE_BYTES, MANIFEST: MAX_MANIFEST_BYTES}


@final
class StoredCheckpoint(NamedTuple):
    """A complete checkpoint in a store.

    Attributes:
        path: Its folder on this machine, whether its files were fetched or not.
        manifest: What it holds.
    """

    path: Path
    manifest: Manifest


class CheckpointStore(ABC):
    """A folder or URL of checkpoints."""

    @abstractmethod
    def free_path(self, step: int) -> Path:
        """Return a folder of this machine to write the checkpoint of a step to."""

    @abstractmethod
    def publish(self, path: Path) -> str:
        """Store a complete checkpoint; return its folder or URL."""

    @abstractmethod
    def checkpoints(self) -> list[StoredCheckpoint]:
        """Return the complete checkpoints, the oldest first.

        Raises:
            CheckpointCorrupt: One has a damaged manifest.
        """

    @abstractmethod
    def fetch(self, stored: StoredCheckpoint) -> Path:
        """Return a folder of this machine with a checkpoint, beside those it is based on."""

    @abstractmethod
    def prune(self, keep: int, keep_s: float = 0.0) -> list[str]:
        """Remove all but the newest checkpoints and those they are based on; return their names.

        Args:
            keep: Number of the newest to keep.
            keep_s: Keep checkpoints that are younger than this, too.

        Raises:
            InvalidRequest: None would be kept.
            CheckpointCorrupt: One has a damaged manifest; nothing is removed then.
        """

    @abstractmethod
    def find(self, name: str) -> StoredCheckpoint:
        """Return one checkpoint.

        Raises:
            CheckpointCorrupt: There is none of that name, or its manifest is damaged.
        """

    def newest_run(self) -> StoredCheckpoint | None:
        """Return the newest checkpoint of a whole run."""
        runs = [stored for stored in self.checkpoints() if stored.manifest.run is not None]
        return runs[-1] if runs else None

    @abstractmethod
    def close(self) -> None:
        """Remove checkpoints that were fetched to this machine; may be called twice."""


@final
class LocalStore(CheckpointStore):
    """Checkpoints in a folder of this machine.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def free_path(self, step: int) -> Path:
        """Return a folder that does not exist yet."""
        path, number = self._root / f"step-{step:09}", 1
        while path.exists():
            number += 1
            path = self._root / f"step-{step:09}-{number}"
        return path

    def publish(self, path: Path) -> str:
        """Return the path: the checkpoint was written into the store."""
        return str(path)

    def checkpoints(self) -> list[StoredCheckpoint]:
        """Return the complete checkpoints, the oldest first."""
        return _by_age(StoredCheckpoint(path, read_manifest(path)) for path in self._complete())

    def _complete(self) -> list[Path]:
        if not self._root.is_dir():
            return []
        return [
            path
            for path in self._root.iterdir()
            if not path.name.startswith(".") and (path / COMPLETE).exists()
        ]

    def newest_run(self) -> StoredCheckpoint | None:
        """Return the newest checkpoint of a whole run, leaving out those with damaged manifests.

        The data files are verified when it is restored.
        """
        found = []
        for path in self._complete():
            try:
                stored = StoredCheckpoint(path, read_manifest(path))
            except CheckpointCorrupt:
                continue
            if stored.manifest.run is not None:
                found.append(stored)
        return max(found, key=lambda stored: stored.manifest.created, default=None)

    def fetch(self, stored: StoredCheckpoint) -> Path:
        """Return the path."""
        return stored.path

    def prune(self, keep: int, keep_s: float = 0.0) -> list[str]:
        """Remove old ones."""
        gone = [stored.path for stored in _superfluous(self.checkpoints(), keep, keep_s)]
        for path in gone:
            if path.is_symlink():
                path.unlink()  # what it refers to is not in this store
                continue
            (path / COMPLETE).unlink()
            shutil.rmtree(path)
        return [path.name for path in gone]

    def remove_partial(self) -> list[str]:
        """Remove partial checkpoints while no process is writing; return their names."""
        left = []
        if self._root.is_dir():
            left = [path for path in self._root.iterdir() if _PARTIAL.match(path.name)]
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        return [path.name for path in left]

    def find(self, name: str) -> StoredCheckpoint:
        """Return one checkpoint."""
        return StoredCheckpoint(self._root / name, read_manifest(self._root / name))

    def close(self) -> None:
        """Do nothing: no file was copied."""


@final
class RemoteStore(CheckpointStore):
    """Checkpoints at a URL; made by `open_store`.

    Args:
        url: Such as `s3://bucket/runs`.
        files: fsspec's file system of the URL.
        root: The path of the URL in it.
        scratch: A folder of this machine for checkpoints on their way, removed by `close`.
    """

    def __init__(self, url: str, files: Any, root: str, scratch: Path) -> None:
        self._url = url.rstrip("/")
        self._files = files
        self._root = root.rstrip("/")
        self._scratch = scratch

    def free_path(self, step: int) -> Path:
        """Return a scratch folder whose name is free at the URL."""
        name, number = f"step-{step:09}", 1
        while self._is_complete(name) or (self._scratch / name).exists():
            number += 1
            name = f"step-{step:09}-{number}"
        return self._scratch / name

    def _is_complete(self, name: str) -> bool:
        return bool(self._files.exists(f"{self._root}/{name}/{COMPLETE}"))

    def publish(self, path: Path) -> str:
        """Copy a checkpoint to the URL, `COMPLETE` last; then remove the scratch folder."""
        files = sorted(p for p in path.rglob("*") if p.is_file() and p.name != COMPLETE)
        for file in [*files, path / COMPLETE]:
            target = f"{self._root}/{path.name}/{PurePosixPath(file.relative_to(path))}"
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(file), target)
        shutil.rmtree(path)
        return f"{self._url}/{path.name}"

    def checkpoints(self) -> list[StoredCheckpoint]:
        """Return the complete checkpoints, the oldest first."""
        self._files.invalidate_cache()
        if not self._files.exists(self._root):
            return []
        names = [PurePosixPath(p).name for p in self._files.ls(self._root, detail=False)]
        return _by_age(self.find(name) for name in names if self._is_complete(name))

    def _place(self, path: str) -> str:
        """Return the path of something in this store in fsspec's file system.

        Raises:
            CheckpointCorrupt: The path leads out of the store.
        """
        try:
            return confined(path, self._root)
        except ValueError as error:
            raise CheckpointCorrupt(f"checkpoint: {self._url}: {error}", path=self._url) from None

    def find(self, name: str) -> StoredCheckpoint:
        """Return one checkpoint."""
        self._place(name)
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            # Errors show the name of the folder.
            held = Path(folder) / name
            held.mkdir()
            for file, most in _SEALED.items():
                self._get(f"{name}/{file}", held / file, most)
            return StoredCheckpoint(self._scratch / name, read_manifest(held))

    def _get(self, path: str, target: Path, most: int) -> None:
        """Copy a file to this machine; no more of it than its expected size."""
        source = self._place(path)
        try:
            size = self._files.size(source)
            if size is not None and size > most:
                raise ValueError(f"it has {size:,} bytes, at most {most:,} are expected")
            if size is not None:
                self._files.get_file(source, str(target))
            else:
                self._stream(source, target, most)
        except (OSError, ValueError) as error:
            raise CheckpointCorrupt(
                f"checkpoint: {self._url}/{path}: {error}; it is not a complete checkpoint",
                path=f"{self._url}/{path}",
            ) from None

    def _stream(self, source: str, target: Path, most: int) -> None:
        """Copy a file whose size the file system does not report."""
        with self._files.open(source, "rb") as remote, target.open("wb") as local:
            while part := remote.read(_CHUNK_BYTES):
                if local.tell() + len(part) > most:
                    raise ValueError(f"it has more than the expected {most:,} bytes")
                local.write(part)

    def fetch(self, stored: StoredCheckpoint) -> Path:
        """Copy a checkpoint to this machine, and those it is based on."""
        path, manifest = stored.path, stored.manifest
        seen: set[str] = set()
        while True:
            check_chain(path, manifest, seen)
            self._copy(path.name, manifest)
            if manifest.base is None:
                return stored.path
            path = self._scratch / PurePosixPath(manifest.base.path).name
            manifest = self.find(path.name).manifest

    def _copy(self, name: str, manifest: Manifest) -> None:
        target = self._scratch / name
        if (target / COMPLETE).exists():
            return
        for file in manifest.files:
            path = file.inside(target)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._get(f"{name}/{file.path}", path, file.bytes)
        target.mkdir(exist_ok=True)
        for sealed in (MANIFEST, COMPLETE):
            self._get(f"{name}/{sealed}", target / sealed, _SEALED[sealed])

    def prune(self, keep: int, keep_s: float = 0.0) -> list[str]:
        """Remove old ones, the `COMPLETE` of each first."""
        gone = [stored.path.name for stored in _superfluous(self.checkpoints(), keep, keep_s)]
        for name in gone:
            self._files.rm_file(f"{self._root}/{name}/{COMPLETE}")
            self._files.rm(f"{self._root}/{name}", recursive=True)
        return gone

    def close(self) -> None:
        """Remove the scratch folder."""
        shutil.rmtree(self._scratch, ignore_errors=True)


def open_store(where: str) -> CheckpointStore:
    """Return the store in a folder or at a URL.

    Raises:
        InvalidRequest: fsspec, or what it needs for the URL, is not installed.
    """
    if "://" not in where:
        return LocalStore(Path(where))
    try:
        import fsspec  # type: ignore[import-untyped]

        files, root = fsspec.core.url_to_fs(where)
    except (ImportError, ValueError) as error:
        raise InvalidRequest(
            f"checkpoints at {where!r}: {error}; pip install gradmesh[remote] and what fsspec "
            "needs for that URL",
            url=where,
        ) from None
    scratch = Path(tempfile.mkdtemp(prefix="gradmesh-checkpoints-"))
    return RemoteStore(where, files, str(root), scratch)


def open_checkpoint(where: str) -> tuple[CheckpointStore, StoredCheckpoint]:
    """Return one checkpoint by its folder or URL, and the store that it is in.

    Raises:
        CheckpointCorrupt: It is not a complete checkpoint.
    """
    if "://" in where:
        root, _, name = where.rstrip("/").rpartition("/")
        store = open_store(root)
        return store, store.find(name)
    path = Path(where).absolute()
    store = LocalStore(path.parent)
    return store, store.find(path.name)


def _by_age(found: Iterable[StoredCheckpoint]) -> list[StoredCheckpoint]:
    return sorted(found, key=lambda stored: (stored.manifest.created, stored.path.name))


def _superfluous(
    found: Sequence[StoredCheckpoint], keep: int, keep_s: float
) -> list[StoredCheckpoint]:
    """Return the checkpoints to remove, given the number and the age of those to keep.

    The newest come first: a checkpoint goes before its base, so that no chain is ever broken.

    Raises:
        InvalidRequest: None would be kept.
    """
    if keep < 1:
        raise InvalidRequest(f"cannot keep {keep} checkpoints; keep at least one", keep=keep)
    since = time.time() - keep_s
    young = [one for one in found[:-keep] if keep_s > 0 and one.manifest.created >= since]
    needed = _with_bases(found, [*young, *found[-keep:]])
    return [stored for stored in reversed(found) if stored.manifest.id not in needed]


def _with_bases(found: Sequence[StoredCheckpoint], wanted: Sequence[StoredCheckpoint]) -> set[str]:
    bases = {
        stored.manifest.id: stored.manifest.base.id
        for stored in found
        if stored.manifest.base is not None
    }
    needed: set[str] = set()
    for stored in wanted:
        id_: str | None = stored.manifest.id
        while id_ is not None and id_ not in needed:
            needed.add(id_)
            id_ = bases.get(id_)
    return needed
