"""Names of workers, tables, functions and keys: what is allowed and how they sort."""

import re

from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.limits import MAX_NAME_BYTES

_ALLOWED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/\-]*")


def check_name(kind: str, name: str) -> str:
    """Return the name.

    Raises:
        InvalidRequest: It is empty, too long, or has characters that do not belong into a name.
    """
    if len(name) > MAX_NAME_BYTES or not _ALLOWED.fullmatch(name):
        raise InvalidRequest(
            f"{name[:40]!r} is no name for a {kind}; use letters, digits and _ . : / -, "
            f"at most {MAX_NAME_BYTES}",
            kind=kind,
        )
    return name


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts trainer-2 before trainer-10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
