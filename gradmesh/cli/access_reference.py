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

# What a handler checks after the role. Readers are in no other list of rpcs that write.
_ALSO = {
    "CoordinatorService/Register": "a member role that the caller's role may have",
    "CoordinatorService/RenewLease": "as Register",
    "CoordinatorService/Leave": "as Register",
    "OwnerService/OpenLane": "each call on the lane, like a call of its own",
    "OwnerService/Exchange": "each call on the stream, like a call of its own",
    "ParameterServerService/Lookup": "`reader`: no context and no mark, and no row is created",
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
