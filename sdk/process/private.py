"""Folders and files that only this user can read: state, logs, tokens, keys."""

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import IO, ClassVar, final

from gradmesh.base_error import GradmeshError

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_OTHERS = 0o077
_TOKEN_BYTES = 32


@final
class UnsafeFolder(PermissionError, GradmeshError):
    """A folder cannot be made private.

    Args:
        path: The folder.
        why: What is wrong with it.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"folder {str(path)!r} {why}; choose one that belongs to you alone")


def make_private_folder(path: Path, *, may_be_link: bool = True) -> None:
    """Make a folder that only this user can enter; an existing one is closed to others.

    Args:
        path: The folder; parents that are missing are made as the umask says.
        may_be_link: Whether it may be a symbolic link, as a folder that the user named may.

    Raises:
        UnsafeFolder: It belongs to another user, users share it, or it is not a folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=_FOLDER_MODE)
    flags = os.O_RDONLY | os.O_DIRECTORY | (0 if may_be_link else os.O_NOFOLLOW)
    try:
        folder = os.open(path, flags)
    except OSError as error:
        raise UnsafeFolder(path, f"cannot be opened ({error.strerror})") from None
    try:
        seen = os.fstat(folder)
        if seen.st_uid != os.geteuid():
            raise UnsafeFolder(path, f"belongs to user {seen.st_uid}")
        if seen.st_mode & stat.S_ISVTX:
            # Such as /tmp: closing it would take it from the other users.
            raise UnsafeFolder(path, "is shared by several users")
        if stat.S_IMODE(seen.st_mode) != _FOLDER_MODE:
            os.fchmod(folder, _FOLDER_MODE)
    finally:
        os.close(folder)


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a binary file for writing, readable by this user only, as an existing one becomes."""
    file: IO[bytes] = open(path, mode, opener=_create)  # noqa: SIM115  # the caller closes it
    if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & _OTHERS:
        os.fchmod(file.fileno(), _FILE_MODE)
    return file


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole by one that only this user can read."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    # A former process of this id may have left one.
    draft.unlink(missing_ok=True)
    with open(draft, "xb", opener=_create) as file:
        file.write(text.encode())
    draft.replace(path)


def is_private(seen: os.stat_result) -> bool:
    """Return whether a file or folder belongs to this user, and others cannot read it."""
    return seen.st_uid == os.geteuid() and not stat.S_IMODE(seen.st_mode) & _OTHERS


def make_files_private() -> None:
    """Make all files that this process creates from now on private, those of libraries too."""
    os.umask(_OTHERS | os.umask(_OTHERS))


def new_token() -> str:
    """Return a random bearer token."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def _create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)
