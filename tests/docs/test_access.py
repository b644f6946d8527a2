"""The table of roles and rpcs in docs/operations.md is up to date."""

from pathlib import Path

from gradmesh.protos.rpcs import ACCESS, ROLES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def test_the_page_has_the_table_of_roles() -> None:
    rows: dict[tuple[str, frozenset[str]], list[str]] = {}
    for path, roles in ACCESS.items():
        service, name = path.rsplit("/", 1)
        rows.setdefault((service.rsplit(".", 1)[1], roles), []).append(f"`{name}`")
    lines = PAGE.read_text().splitlines()

    for (service, roles), names in rows.items():
        is_open = roles == frozenset(ROLES)
        who = "every role" if is_open else ", ".join(f"`{r}`" for r in ROLES if r in roles)
        assert f"| `{service}` | {', '.join(names)} | {who} |" in lines
