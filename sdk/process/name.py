"""Names of processes in the cluster: they label logs, metrics and errors, and name files."""

import re

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


def worker_name(name: str) -> str:
    """Check the name of a process.

    Raises:
        ValueError: It is not a DNS label of at most 63 characters (dots allowed), which is what
            a Kubernetes pod can be called too.
    """
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            "expected at most 63 of a-z, 0-9, '-' and '.', beginning and ending with a letter "
            f"or digit, got {name!r}"
        )
    return name
