"""What a run has skipped, in one sentence: why, and which command runs it."""

import re
from collections import Counter
from collections.abc import Iterable

_KINDS = (
    (r"no such case: ", "are cases that their backend does not have"),
    (r"\btorch\b", "need torch (make parity-setup)"),
    (r"CUDA device", "need a GPU (pytest -m gpu on such a machine)"),
    (r"\b(cupy|mpi4py|MKL)\b", "need cupy, MKL or MPI (make parity-setup)"),
    (r"container engine", "need a container engine (make e2e)"),
    (
        r"\b(kubectl|docker-compose|nvcc)\b",
        "need kubectl, docker-compose 1.29 or nvcc",
    ),
)


def skip_summary(reasons: Iterable[str], without_slow: bool) -> str:
    """Return the sentence; reasons of an unknown kind are quoted in it."""
    kinds = Counter(_kind(reason.removeprefix("Skipped: ")) for reason in reasons)
    parts = [f"{count} {kind}" for kind, count in kinds.most_common()]
    found = f"{kinds.total()} skipped: {', '.join(parts)}" if parts else "nothing skipped"
    return f"{found}; the slow ones were left out (make test-all)" if without_slow else found


def _kind(reason: str) -> str:
    kinds = (kind for pattern, kind in _KINDS if re.search(pattern, reason))
    return next(kinds, f"for another reason ({reason})")
