from pathlib import Path

import pytest

from gradmesh.protos.reference import renew

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


def test_errors_in_the_docs_are_the_catalogue() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert renew(page) == page, "run: python -m gradmesh.protos.reference docs/errors.md"


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the markers"):
        renew("# no markers")
