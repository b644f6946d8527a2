"""The table of roles and rpcs in docs/security.md is up to date."""

from pathlib import Path

import pytest

from gradmesh.cli.access_reference import renew
from gradmesh.protos.rpcs import ACCESS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def test_the_page_has_the_table_of_roles() -> None:
    page = PAGE.read_text()

    assert renew(page) == page, "run: python -m gradmesh.cli.access_reference docs/security.md"
    assert [path for path in ACCESS if f"`{path.rpartition('/')[2]}`" not in page] == []


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the markers"):
        renew("# no markers")
