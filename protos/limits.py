"""Limits of the contract, enforced by every reader before it allocates memory; and names."""

import re

from gradmesh.protos.errors import InvalidRequest, LimitExceeded

_ALLOWED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/\-]*")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%[\w.\-]+)?\]|[\w.\-]+):[0-9]{1,5}", re.ASCII)

MAX_AXES = 8
"""Axes of one array."""

MAX_ARRAYS = 4096
"""Arrays in one message."""

MAX_FRAME_BYTES = 256 * 2**20
"""One message, unless a process is configured otherwise."""

FRAME_BYTES_RANGE = (4096, 2**31 - 1)
"""What a process can be configured to."""

MAX_COORDINATOR_BYTES = 8 * 2**20
"""One message to or from the coordinator: a head and what gRPC adds; it exchanges no arrays."""

MAX_QUEUED_CALLS = 8192
"""Calls that wait for a thread of a gRPC server; their requests are not received yet."""

MAX_STREAMS = 1024
"""Calls under way on one gRPC connection; the client's library queues more."""

MAX_HEAD_BYTES = 4 * 2**20
"""A message without its arrays; protobuf needs a multiple of it to hold it parsed."""

MAX_NAME_BYTES = 256
"""A table, worker, function or key name in UTF-8."""

MAX_VALUE_BYTES = 64 * 2**10
"""A value published through the coordinator."""

MAX_VALUE_DEPTH = 32
"""Nesting of lists and maps in a typed value."""

MAX_TABLE_ROWS = 2**40
"""Rows of one table in the whole cluster."""

MAX_TABLE_DIM = 2**16
"""Elements of one row."""

MAX_LINEAGE = 2**16
"""Messages with gradients in one context that one process tracks."""

MAX_TICKETS = 256
"""Tickets, or processes to check, in one request to the coordinator."""

MAX_TICKET_BYTES = 1024
"""One ticket; two names fit."""
MAX_ADDRESS_BYTES = 300
"""An address: the longest host name of DNS has 253 bytes."""

MAX_TEXT_BYTES = 4096
"""An error, path or other text that a process reports to the coordinator."""

MAX_ERROR_BYTES = 32 * 2**10
"""The message of an error that one worker passes on to others, with its traceback."""

MAX_ENTRIES = 2**16
"""Named entries of one list in a request; most lists have a lower limit of their own."""


def check_text(what: str, text: str, most: int = MAX_TEXT_BYTES) -> str:
    """Return a text if it is short enough to be kept.

    Raises:
        LimitExceeded: It is too long.
    """
    # A character has four bytes at most; only long texts are encoded.
    if len(text) * 4 > most and len(text.encode(errors="replace")) > most:
        raise LimitExceeded(
            f"{what}: {len(text)} characters, at most {most} bytes are kept; shorten it",
            limit=what,
            most=most,
        )
    return text


def shortened(text: str, most: int = MAX_TEXT_BYTES) -> str:
    """Return a text without its middle if it is too long to be kept."""
    keep = most // 8 - 1  # characters at each end; one has four bytes at most
    return text if len(text) * 4 <= most else f"{text[:keep]} … {text[-keep:]}"


def check_name(kind: str, name: str) -> str:
    """Return the name if it is valid.

    Raises:
        InvalidRequest: It is empty, too long, or has a character that names may not have.
    """
    if len(name) > MAX_NAME_BYTES or not _ALLOWED.fullmatch(name):
        raise InvalidRequest(
            f"{name[:40]!r} is not a name for a {kind}; use letters, digits and _ . : / -, "
            f"at most {MAX_NAME_BYTES}",
            kind=kind,
        )
    return name


def check_address(address: str) -> str:
    """Return the address if it is valid.

    Raises:
        InvalidRequest: It is not host:port, or too long.
    """
    if len(address) > MAX_ADDRESS_BYTES or not _ADDRESS.fullmatch(address):
        raise InvalidRequest(
            f"{address[:80]!r} is not an address; use host:port with letters, digits and _ . -, or "
            f"[IPv6]:port, at most {MAX_ADDRESS_BYTES} characters",
            address=address[:80],
        )
    return address


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts trainer-2 before trainer-10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
