from pathlib import Path

import pytest

from gradmesh.cli.reference import renew
from gradmesh.launch.sections import SECTION_NAMES, cluster_sections
from gradmesh.sdk.process.setting import settings

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def test_settings_in_the_docs_are_up_to_date() -> None:
    page = PAGE.read_text()

    assert renew(page) == page, "run: python -m gradmesh.cli.reference docs/operations.md"


def test_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the markers"):
        renew("# no markers")


def test_every_table_is_registered_under_its_own_name() -> None:
    assert [section.section for section in cluster_sections()] == list(SECTION_NAMES)


def test_every_setting_is_documented_in_one_sentence() -> None:
    declared = [s for section in cluster_sections() for s in settings(section)]

    assert [s.key for s in declared if not s.rule.help.endswith(".")] == []
    assert [s.key for s in declared if s.name == "port"] == []
