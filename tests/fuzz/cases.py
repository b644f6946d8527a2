"""Cases that run in a sandbox: hostile files, configurations, and frames between ranks."""

from __future__ import annotations

import random
import traceback
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, NamedTuple

from gradmesh.base_error import GradmeshError
from gradmesh.protos.errors import InternalError


class Case(NamedTuple):
    """The outcome of one case.

    Attributes:
        answer: What happened, in a word.
        problem: What is wrong with it; None if it is as it must be.
        data: The bytes that caused it.
    """

    answer: str
    problem: str | None = None
    data: bytes = b""


class Cases(ABC):
    """One reader of hostile input, called many times in one process.

    Args:
        folder: An empty folder for its files.
    """

    address_space: ClassVar[int] = 4 << 30
    """Bytes that a case may map beyond those of the start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def prepare(self) -> None:
        """Make the valid input that is mutated."""

    @abstractmethod
    def run(self, chance: random.Random) -> Case:
        """Try one mutation."""

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """End what `prepare` has started."""


def judge(error: BaseException, data: bytes) -> Case:
    """Return the case of an error: right if it is one of ours, which name the remedy."""
    if isinstance(error, GradmeshError) and not isinstance(error, InternalError):
        return Case(type(error).__name__)
    text = "".join(traceback.format_exception(error)[-6:])
    return Case("raw error", f"a raw {type(error).__name__}: {error}\n{text}", data)


def write_folder(folder: Path, files: dict[str, bytes]) -> None:
    """Write files below a folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder by relative path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
