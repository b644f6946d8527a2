"""Limits of the contract, enforced by every reader before it allocates memory; and names.

A `Bound` limits what a process keeps for its callers. docs/security.md lists what happens beyond
each one and what frees it.
"""

import re

from gradmesh.protos.bound import Bound
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

MAX_STREAMS = 8192
"""Calls under way on one gRPC connection. The client's library queues more, but not in its first
burst, before it knows the limit: those are refused. A process may well begin a thousand calls."""

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

MAX_STEPS = 2**48
"""Steps of a run or a table; ten thousand a second for nine hundred years. Kernels count in 64 bits
with a sign."""

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
MAX_PAGE = 1000
"""Items of a page of a list; the members of most clusters fit into one."""

MAX_PAGE_BYTES = 2**20
"""A page, unless its first item is larger: far below a message's head."""

MAX_COORDINATOR_REQUEST_BYTES = 16 * 2**10
"""A request to the coordinator, unless its rpc has a limit of its own: all are small."""

MAX_OPENERS = 1024
"""Openers of contexts in one lease renewal; a member with more names them in turn. The coordinator
checks each under its lock, which takes a millisecond for this number."""

MAX_FIGURES = 256
"""Results of one run. The coordinator stores those of 256 jobs in one fact of its journal."""

MAX_SHARDS_HELD = 1024
"""Shards of a data set that one worker has taken and not finished; a reader needs a few."""

MAX_IDS_AT_ONCE = 4096
"""References to delete or to pass on, or contexts to release, in one request; clients delete and
release 1000 at most."""

MEMBERS = Bound("members of one role", 8192, 0, "end some, or wait until their leases expire")
"""Twice the trainers or parameter servers that a coordinator can be configured for. Each role has
its own, so that clients cannot keep servers out."""

TABLES = Bound("tables", 4096, 1024, "use tables that exist, or a cluster of their own")
"""Models with the most have hundreds. Every parameter server keeps the specification of each."""

MAX_TABLE_SPEC_BYTES = 8 * 2**10
"""A specification of a table; those with every option have about 500 bytes."""

DATA_SETS = Bound("data sets", 4096, 512, "read under the names of data sets that exist")
"""Few runs read more than a train and a test set each."""

DATA_SHARDS = Bound("shards of all data sets", 2**28, 2**26, "use larger shards")
"""A bit each, in memory and in the journal: 32 MiB."""

KEYS = Bound("keys of a generation", 2**16, 2**13, "publish fewer, or several values in one")
"""A few for each trainer of the largest world."""

KEY_BYTES = Bound("bytes published in a generation", 2**26, 2**23, "publish smaller values")
"""16 KiB for each trainer of the largest world: addresses and ids of communicators."""

MAX_WAITS = 4
"""Calls of one member that wait at the coordinator, each on a thread: a trainer waits for its rank
or for a value. Others are answered "not yet" at once, as they are when all threads wait."""

CONTEXTS = Bound("open contexts", 2**15, 1024, "leave contexts, or wait until they are released")
"""About 5 KiB each. A process has one for each step under way, and some that are being released."""

LOOKUPS = Bound("lookups of a context", 2**16, 0, "open a context for each step")
"""As many as messages with gradients."""

MAX_PLAN_BYTES = 2**20
"""The plan of a backward pass, which each participant keeps: the numbers of its messages."""

LINEAGE_LINKS = Bound("links between messages of a context", 2**20, 0, "open a context a step")
"""About 100 bytes each; a message is computed from a few others."""

WORKERS_OF_CONTEXT = Bound("workers of a context", 4096, 0, "call fewer workers in a context")
"""The largest world."""

PASSES = Bound("workers with a backward pass in a context", 256, 0, "begin passes on fewer workers")
"""A context has one initiator, or the owners of the values that it runs backwards from."""

REFERENCES = Bound("references", 2**18, 2**16, "delete some, or keep several values in one object")
"""About 1 KiB each, without the value."""

AWAITED = Bound(
    "references whose creation has not arrived", 2**14, 2**12, "create a value before its first use"
)
"""Requests overtake the creation by milliseconds; an entry whose creation never arrives is kept
for minutes."""

DEFERRED = Bound("replies owed", 2**16, 2**14, "wait for replies before sending more calls")
"""Calls that were accepted and have no reply yet: about 2 KiB each, and their arguments."""

QUEUED_BYTES = Bound("bytes of queued calls", 2**30, 2**29, "wait for replies, or send less")
"""Arguments of calls that wait for a thread: four messages of the largest size."""

GATHERS = Bound("gathers that wait", 1024, 128, "wait for gathers before beginning more")
"""A worker is in one at a time, or in one for each of its groups."""

GATHER_BYTES = Bound("bytes of gathers that wait", 2**30, 0, "gather smaller values")
"""The reply carries all values of a gather, so it must fit into a message anyway."""

MAX_PREPARED_STEPS = 8
"""Prepared steps of an optimizer, each with a copy of the parameters. Its client prepares one at a
time; the oldest is abandoned."""

SNAPSHOTS = Bound("snapshots of a server", 64, 16, "end some, or wait until they expire")
"""A table has one that is frozen; the others wait for their step."""

STAGED_MARKS = Bound("bytes of staged dedupe tables", 2**28, 0, "scale again")
"""Of all servers that a reshard moves rows from."""

LANE_OFFERS = Bound("lane offers", 256, 64, "use the offers, or wait until they expire")
"""Each opens one connection within seconds."""

DEDUPE_WORKERS = 2**14
"""Workers in a dedupe table, or with tombstones of contexts: the least recently used one is
dropped. No less than members can be, so that no live member is."""

DEDUPE_NUMBERS = 2**18
"""Numbers in a dedupe table, or tombstones, that all workers share; about 70 bytes each."""


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


def check_count(what: str, count: int, most: int) -> None:
    """Raise if a request names too many things.

    Raises:
        LimitExceeded: It does.
    """
    if count > most:
        raise LimitExceeded(
            f"{what}: {count} in one request, the limit is {most}; send several requests",
            limit=what,
            most=most,
        )


def check_steps(steps: int) -> int:
    """Return a number of steps that a request sets, if a run can have done as many.

    Raises:
        InvalidRequest: It is larger.
    """
    if steps > MAX_STEPS:
        raise InvalidRequest(f"{steps} steps; a run has {MAX_STEPS} at most", steps=steps)
    return steps


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
