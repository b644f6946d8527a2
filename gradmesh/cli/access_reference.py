"""Generate the table of roles and rpcs in docs/security.md from `protos.rpcs`.

Run `python -m gradmesh.cli.access_reference docs/security.md`.
"""

import sys
from pathlib import Path

from gradmesh.protos.rpcs import ACCESS, HOT, ROLES

BEGIN = "<!-- access: made by `python -m gradmesh.cli.access_reference docs/security.md` -->"
END = "<!-- end of access -->"

ALL_WAYS = ("unary", "stream", "tcp", "shm")
"""The ways a call can take: a gRPC call of its own, and the lanes."""

# What a handler checks after the role, where callers are authenticated. Readers are in no other
# list of rpcs that write.
_OWN_SESSION = "the session of the member that it names"
_GENERATION = "the session of a trainer of the generation"
_OWN_NAME = "names the caller itself"
_CONTEXT = "a context that the caller may work in"
_ALSO = {
    "AutogradService/SendGradients": _CONTEXT,
    "AutogradService/ReportParts": _CONTEXT,
    "AutogradService/StepParameters": _CONTEXT,
    "AutogradService/AbortPass": f"{_CONTEXT}; the caller began the pass",
    "AutogradService/ProbePass": f"{_CONTEXT}; the caller began the pass",
    "CoordinatorService/Register": "a member role that the caller's role may have, and the session "
    "of a known incarnation",
    "CoordinatorService/RenewLease": _OWN_SESSION,
    "CoordinatorService/Leave": _OWN_SESSION,
    "CoordinatorService/JoinRound": _OWN_SESSION,
    "CoordinatorService/TakeShard": _OWN_SESSION,
    "CoordinatorService/ReportProgress": _OWN_SESSION,
    "CoordinatorService/ReportCheckpoint": _OWN_SESSION,
    "CoordinatorService/ReportMove": _OWN_SESSION,
    "CoordinatorService/PutKey": _GENERATION,
    "CoordinatorService/GetKey": _GENERATION,
    "CoordinatorService/ReportResult": _GENERATION,
    "CoordinatorService/IssueTickets": "tickets are for the caller's own session",
    "OwnerService/Call": f"{_OWN_NAME}; {_CONTEXT}",
    "OwnerService/CreateRef": f"{_OWN_NAME}; {_CONTEXT}",
    "OwnerService/FetchRef": f"{_OWN_NAME}; {_CONTEXT}",
    "OwnerService/DescribeRef": _OWN_NAME,
    "OwnerService/ForkRef": _OWN_NAME,
    "OwnerService/CheckCalls": _OWN_NAME,
    "OwnerService/Deliver": f"{_OWN_NAME}; the worker that was called",
    "OwnerService/DeleteRef": "references that the caller holds",
    "OwnerService/AcceptFork": "the owner of the reference",
    "OwnerService/ReleaseContext": _CONTEXT,
    "OwnerService/OpenLane": "each call on the lane, like a call of its own",
    "OwnerService/Exchange": "each call on the stream, like a call of its own",
    "ParameterServerService/Lookup": f"{_CONTEXT}; `reader`: no context and no mark, and no row is "
    "created",
    "ParameterServerService/Refresh": _CONTEXT,
    "ParameterServerService/Backward": _CONTEXT,
    "ParameterServerService/Apply": _CONTEXT,
    "ParameterServerService/Push": _OWN_NAME,
    "ParameterServerService/BeginSnapshot": _OWN_NAME,
}


def ways_of(path: str) -> tuple[str, ...]:
    """Return the ways that a call of an rpc can take."""
    if path.endswith("/Exchange"):
        return ("stream",)
    return ALL_WAYS if path in HOT else ("unary",)


def access_table() -> str:
    """Return the Markdown table; rpcs with equal rights share a row."""
    rows: dict[tuple[str, frozenset[str], tuple[str, ...], str], list[str]] = {}
    for path, roles in ACCESS.items():
        service, name = path.rpartition(".")[2].split("/")
        also = _ALSO.get(f"{service}/{name}", "")
        rows.setdefault((service, roles, ways_of(path), also), []).append(f"`{name}`")
    lines = ["| service | rpcs | roles | ways in | also checked |", "|---|---|---|---|---|"]
    for (service, roles, ways, also), names in rows.items():
        is_open = roles == frozenset(ROLES)
        who = "every role" if is_open else ", ".join(f"`{r}`" for r in ROLES if r in roles)
        how = "every way" if ways == ALL_WAYS else ", ".join(ways)
        lines.append(f"| `{service}` | {', '.join(names)} | {who} | {how} | {also or 'nothing'} |")
    return "\n".join(lines)


def renew(page: str) -> str:
    """Return the page with its table regenerated.

    Raises:
        ValueError: The page lacks the markers.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected the markers {BEGIN!r} and {END!r}")
    return f"{head}{BEGIN}\n\n{access_table()}\n\n{END}{tail}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renew(file.read_text(encoding="utf-8")), encoding="utf-8")
