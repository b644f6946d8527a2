"""What one seed of a target yields: counts, answers and findings."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True)
class Finding:
    """A defect.

    Attributes:
        what: What happened.
        data: The bytes that caused it; empty if only the batch is known.
    """

    what: str
    data: bytes = b""


@dataclass
class Batch:
    """The outcome of one seed.

    Attributes:
        frames: Frames, files or configurations that were tried.
        answers: How often each answer came.
        findings: The defects.
    """

    frames: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Batch) -> None:
        """Add the outcome of another seed."""
        self.frames += other.frames
        self.answers += other.answers
        self.findings += other.findings


class Target(ABC):
    """One border of the system.

    A seed determines the frames of a batch, so a finding is repeated by its seed.
    """

    name: ClassVar[str]
    """As FUZZ_TARGETS names it."""
    frames: ClassVar[int]
    """Frames of one seed."""
    share: ClassVar[float]
    """Part of all frames that this target gets, relative to the others."""

    @abstractmethod
    def run(self, seed: int) -> Batch:
        """Try the frames of a seed."""

    def close(self) -> None:  # noqa: B027  # some have nothing to end
        """End what this target has started."""

    def chance(self, seed: int) -> random.Random:
        """Return the source of all decisions of a seed."""
        return random.Random(f"{self.name}:{seed}")


def save(folder: Path, target: str, seed: int, findings: list[Finding]) -> list[Path]:
    """Write the bytes of findings to files; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, finding in enumerate(findings):
        path = folder / f"{target}-{seed}-{number}.bin"
        path.write_bytes(finding.data)
        paths.append(path)
    return paths
