"""Where the checkpoints of a job are: a folder, or anything that fsspec knows a URL of.

A checkpoint is written to a folder of this machine and read from one. In a folder of checkpoints it
stays there; at a URL it is copied there afterwards, `COMPLETE` last, and back before it is read. So
it is complete or invisible in both.
"""

import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path, PurePosixPath
from typing import final

from gradmesh.protos.errors import CheckpointCorrupt, InvalidRequest
from gradmesh.sdk.checkpoint import shelf
from gradmesh.sdk.checkpoint.manifest import COMPLETE, MANIFEST, Manifest, read_manifest
from gradmesh.sdk.checkpoint.shelf import Kept


class Place(ABC):
    """Checkpoints somewhere. A `Kept` names a folder here, whether its files are here or not."""

    @abstractmethod
    def free_path(self, step: int) -> Path:
        """Return a folder of this machine to write the checkpoint of a step to."""

    @abstractmethod
    def publish(self, path: Path) -> str:
        """Put a complete checkpoint where all of them are; return where that is."""

    @abstractmethod
    def checkpoints(self) -> list[Kept]:
        """Return the complete checkpoints, the oldest first.

        Raises:
            CheckpointCorrupt: One has a damaged manifest.
        """

    @abstractmethod
    def fetch(self, kept: Kept) -> Path:
        """Return a folder of this machine with a checkpoint, beside those that it adds to."""

    @abstractmethod
    def prune(self, keep: int, keep_s: float = 0.0) -> list[str]:
        """Remove all but the newest checkpoints and those that they add to; return their names."""

    @abstractmethod
    def find(self, name: str) -> Kept:
        """Return one checkpoint.

        Raises:
            CheckpointCorrupt: There is none of that name, or its manifest is damaged.
        """

    def newest_run(self) -> Kept | None:
        """Return the newest checkpoint of a whole run."""
        runs = [kept for kept in self.checkpoints() if kept.manifest.run is not None]
        return runs[-1] if runs else None

    @abstractmethod
    def close(self) -> None:
        """Remove what was kept of it on this machine; may be called twice."""


@final
class Folder(Place):
    """Checkpoints in a folder of this machine.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def free_path(self, step: int) -> Path:
        """Return a folder that does not exist yet."""
        return shelf.free_path(self._root, step)

    def publish(self, path: Path) -> str:
        """Return the path: it is in its place."""
        return str(path)

    def checkpoints(self) -> list[Kept]:
        """Return the complete checkpoints, the oldest first."""
        return shelf.list_checkpoints(self._root)

    def newest_run(self) -> Kept | None:
        """Return the newest checkpoint of a whole run; a damaged one is passed over."""
        return shelf.newest_run(self._root)

    def fetch(self, kept: Kept) -> Path:
        """Return the path."""
        return kept.path

    def prune(self, keep: int, keep_s: float = 0.0) -> list[str]:
        """Remove old ones."""
        return [path.name for path in shelf.prune(self._root, keep, keep_s)]

    def find(self, name: str) -> Kept:
        """Return one checkpoint."""
        return Kept(self._root / name, read_manifest(self._root / name))

    def close(self) -> None:
        """All of it is in its place."""


@final
class Remote(Place):
    """Checkpoints at a URL.

    Args:
        url: Such as `s3://bucket/runs` or `gs://…`; what fsspec needs for it must be installed.

    Raises:
        InvalidRequest: fsspec, or what it needs for the URL, is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # type: ignore[import-untyped]

            self._files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise InvalidRequest(
                f"checkpoints at {url!r}: {error}; pip install gradmesh[remote] and what fsspec "
                "needs for that URL",
                url=url,
            ) from None
        self._url = url.rstrip("/")
        self._root = str(root).rstrip("/")
        self._here = Path(tempfile.mkdtemp(prefix="gradmesh-checkpoints-"))

    def free_path(self, step: int) -> Path:
        """Return a scratch folder whose name is free at the URL."""
        name, number = f"step-{step:09}", 1
        while self._files.exists(f"{self._root}/{name}/{COMPLETE}") or (self._here / name).exists():
            number += 1
            name = f"step-{step:09}-{number}"
        return self._here / name

    def publish(self, path: Path) -> str:
        """Copy a checkpoint to the URL, what says that it is complete last; then remove it here."""
        files = sorted(p for p in path.rglob("*") if p.is_file() and p.name != COMPLETE)
        for file in [*files, path / COMPLETE]:
            target = f"{self._root}/{path.name}/{PurePosixPath(file.relative_to(path))}"
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(file), target)
        shutil.rmtree(path)
        return f"{self._url}/{path.name}"

    def checkpoints(self) -> list[Kept]:
        """Return the complete checkpoints, the oldest first."""
        self._files.invalidate_cache()
        if not self._files.exists(self._root):
            return []
        names = [PurePosixPath(p).name for p in self._files.ls(self._root, detail=False)]
        found = [
            self.find(name)
            for name in names
            if self._files.exists(f"{self._root}/{name}/{COMPLETE}")
        ]
        return sorted(found, key=lambda kept: (kept.manifest.created, kept.path.name))

    def find(self, name: str) -> Kept:
        """Return one checkpoint."""
        with tempfile.TemporaryDirectory(dir=self._here) as folder:
            # Named as it is, for a message about it.
            held = Path(folder) / name
            held.mkdir()
            for file in (COMPLETE, MANIFEST):
                self._get(f"{name}/{file}", held / file)
            return Kept(self._here / name, read_manifest(held))

    def _get(self, path: str, target: Path) -> None:
        try:
            self._files.get_file(f"{self._root}/{path}", str(target))
        except OSError as error:
            raise CheckpointCorrupt(
                f"checkpoint: {self._url}/{path}: {error}; it is not complete, or is none",
                path=f"{self._url}/{path}",
            ) from None

    def fetch(self, kept: Kept) -> Path:
        """Copy a checkpoint here, and those that it adds to."""
        name, manifest = kept.path.name, kept.manifest
        while True:
            self._copy(name, manifest)
            if manifest.base is None:
                return kept.path
            name = PurePosixPath(manifest.base.path).name
            manifest = self.find(name).manifest

    def _copy(self, name: str, manifest: Manifest) -> None:
        target = self._here / name
        if (target / COMPLETE).exists():
            return
        files = [file.path for table in manifest.tables for file in table.files]
        files += [] if manifest.run is None else [manifest.run.dense.path]
        for file in [*files, MANIFEST, COMPLETE]:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            self._get(f"{name}/{file}", target / file)

    def prune(self, keep: int, keep_s: float = 0.0) -> list[str]:
        """Remove old ones, what says that they are complete first."""
        gone = [kept.path.name for kept in shelf.superfluous(self.checkpoints(), keep, keep_s)]
        for name in gone:
            self._files.rm_file(f"{self._root}/{name}/{COMPLETE}")
            self._files.rm(f"{self._root}/{name}", recursive=True)
        return gone

    def close(self) -> None:
        """Remove the scratch folder."""
        shutil.rmtree(self._here, ignore_errors=True)


def open_place(where: str) -> Place:
    """Return the checkpoints in a folder or at a URL."""
    return Remote(where) if "://" in where else Folder(Path(where))


def open_one(where: str) -> tuple[Place, Kept]:
    """Return one checkpoint by its folder or URL, and the place it is in.

    Raises:
        CheckpointCorrupt: It is not complete, or is none.
    """
    if "://" in where:
        root, _, name = where.rstrip("/").rpartition("/")
        place: Place = Remote(root)
        return place, place.find(name)
    path = Path(where).absolute()
    place = Folder(path.parent)
    return place, place.find(path.name)
