"""Paths that a file names, confined to a folder.

A manifest, a model folder or a job's file may come from anyone. A path in it is only used after
`confined` has checked it: it names something inside the folder, whatever the file says.
"""

import re
from pathlib import Path
from typing import Final, overload

MAX_PATH_CHARACTERS: Final = 1024
"""Longest path that a file may name."""

# Names that some systems open as a device in every folder, with any extension.
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


@overload
def confined(path: object, root: Path) -> Path: ...
@overload
def confined(path: object, root: str) -> str: ...
def confined(path: object, root: Path | str) -> Path | str:
    """Return a path that a file names, if it is inside a folder.

    Args:
        path: As it is in the file: relative to the folder, with `/` between its parts.
        root: The folder; text is a folder in a file system of fsspec, which has no symbolic links.

    Raises:
        ValueError: It is not text, empty, too long, absolute, a URL, or has `..`, control
            characters or the name of a device; or it leads out of the folder through a symbolic
            link; or it is a device, a pipe or a socket.
    """
    parts = _parts(path)
    if isinstance(root, str):
        return "/".join([root.rstrip("/"), *parts])
    found = root.joinpath(*parts)
    try:
        real = found.resolve()
        inside = real.is_relative_to(root.resolve())
    except (OSError, RuntimeError) as error:
        raise ValueError(f"path {path!r} cannot be followed: {error}") from None
    if not inside:
        raise ValueError(f"path {path!r} leaves {str(root)!r} through a symbolic link")
    if real.exists() and not (real.is_file() or real.is_dir()):
        raise ValueError(f"path {path!r} is a device, a pipe or a socket")
    return found


def is_device_name(part: str) -> bool:
    """Return whether some system opens a file of this name as a device."""
    return _DEVICE.fullmatch(part) is not None


def _parts(path: object) -> list[str]:
    if not isinstance(path, str) or not path:
        raise ValueError(f"expected a path, got {path!r:.80}")
    if len(path) > MAX_PATH_CHARACTERS:
        raise ValueError(f"path {path[:40]!r}… has more than {MAX_PATH_CHARACTERS} characters")
    if not path.isprintable() or "\\" in path:
        raise ValueError(f"path {path!r} has a character that paths in files may not have")
    if path.startswith("/") or "://" in path or re.match(r"[A-Za-z]:", path):
        raise ValueError(
            f"path {path!r} is absolute; it must be relative to the folder of its file"
        )
    parts = path.split("/")
    for part in parts:
        if part in ("", ".", ".."):
            raise ValueError(f"path {path!r} leaves its folder, or is not in its plain form")
        if is_device_name(part):
            raise ValueError(f"path {path!r} has the name of a device")
    return parts
