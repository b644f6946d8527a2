"""A folder of checkpoints: which there are, which is the newest, which may go."""

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

from gradmesh.protos.errors import CheckpointCorrupt, InvalidRequest
from gradmesh.sdk.checkpoint.manifest import COMPLETE, Manifest, read_manifest

_PARTIAL = re.compile(r"^\..+\.[0-9a-f]{8}\.partial$")


@final
class Kept(NamedTuple):
    """A checkpoint in a folder.

    Attributes:
        path: Where it is.
        manifest: What it holds.
    """

    path: Path
    manifest: Manifest


def list_checkpoints(root: Path) -> list[Kept]:
    """Return the complete checkpoints in a folder, the oldest first.

    Raises:
        CheckpointCorrupt: One has a damaged manifest.
    """
    if not root.is_dir():
        return []
    paths = [p for p in root.iterdir() if not p.name.startswith(".") and (p / COMPLETE).exists()]
    found = [Kept(path, read_manifest(path)) for path in paths]
    return sorted(found, key=lambda kept: (kept.manifest.created, kept.path.name))


def newest_run(root: Path) -> Kept | None:
    """Return the newest checkpoint of a whole run; one that is damaged is passed over.

    Whether its data files are whole is found out by whoever restores it.
    """
    found = []
    for path in root.iterdir() if root.is_dir() else ():
        if not path.name.startswith(".") and (path / COMPLETE).exists():
            try:
                kept = Kept(path, read_manifest(path))
            except CheckpointCorrupt:
                continue
            if kept.manifest.run is not None:
                found.append(kept)
    return max(found, key=lambda kept: kept.manifest.created, default=None)


def free_path(root: Path, step: int) -> Path:
    """Return a folder for the checkpoint of a step that does not exist yet."""
    path, number = root / f"step-{step:09}", 1
    while path.exists():
        number += 1
        path = root / f"step-{step:09}-{number}"
    return path


def prune(root: Path, keep: int, keep_s: float = 0.0) -> list[Path]:
    """Remove all but the newest checkpoints and those that they add to; return what went.

    Args:
        root: Where they are.
        keep: How many of the newest stay.
        keep_s: Those that are younger stay, too.

    Raises:
        InvalidRequest: None would be kept.
        CheckpointCorrupt: One has a damaged manifest; nothing is removed then.
    """
    gone = [kept.path for kept in superfluous(list_checkpoints(root), keep, keep_s)]
    for path in gone:
        (path / COMPLETE).unlink()
        shutil.rmtree(path)
    return gone


def superfluous(found: Sequence[Kept], keep: int, keep_s: float = 0.0) -> list[Kept]:
    """Return the checkpoints that may go when so many of the newest are kept, or so long.

    The newest come first: what adds to another goes before it, so that no chain is ever broken.

    Raises:
        InvalidRequest: None would be kept.
    """
    if keep < 1:
        raise InvalidRequest(f"keep {keep} checkpoints? Keep one at least", keep=keep)
    since = time.time() - keep_s
    young = [kept for kept in found[:-keep] if keep_s > 0 and kept.manifest.created >= since]
    needed = _with_bases(found, [*young, *found[-keep:]])
    return [kept for kept in reversed(found) if kept.manifest.id not in needed]


def sweep(root: Path) -> list[Path]:
    """Remove what processes that died left of checkpoints; only when nobody writes there."""
    left = [p for p in root.iterdir() if _PARTIAL.match(p.name)] if root.is_dir() else []
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return left


def _with_bases(found: Sequence[Kept], wanted: Sequence[Kept]) -> set[str]:
    bases = {k.manifest.id: k.manifest.base.id for k in found if k.manifest.base is not None}
    needed: set[str] = set()
    for kept in wanted:
        id_: str | None = kept.manifest.id
        while id_ is not None and id_ not in needed:
            needed.add(id_)
            id_ = bases.get(id_)
    return needed
