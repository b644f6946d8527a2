"""The fuzzer finds defects that are planted: an error, changed rows, a leak, a crash, a hang."""

from __future__ import annotations

import random
from typing import ClassVar

import pytest

from tests.fuzz.cluster import FUNCTIONS, started_cluster
from tests.fuzz.sandbox import SandboxTarget
from tests.fuzz.unary_target import UnaryTarget

pytestmark = pytest.mark.timeout(300)


class PlantedTarget(SandboxTarget):
    name: ClassVar[str] = "planted"
    frames: ClassVar[int] = 20
    share: ClassVar[float] = 0.0
    cases: ClassVar[str] = "tests.fuzz.planted_cases:PlantedCases"


def test_an_error_and_changed_rows_are_found() -> None:
    with started_cluster((FUNCTIONS, "tests.fuzz.planted_bugs")) as cluster:
        target = UnaryTarget(cluster)
        findings = [finding for seed in (1, 2) for finding in target.run(seed).findings]

    texts = [finding.what for finding in findings]
    assert any("InspectTable" in text and "internal error" in text for text in texts)
    assert any("IndexError" in text for text in texts)
    assert "the state of kept-rows has changed" in texts
    assert all(finding.data for finding in findings if "InspectTable as" in finding.what)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("raises", "case 4: a raw KeyError"),
        ("believes a size", "case 4: a raw MemoryError"),
        ("leaks", "descriptors"),
        ("ends", "case 4: the process has ended"),
        ("hangs", "case 4: no answer within"),
    ],
)
def test_a_defect_in_a_sandbox_is_found(how: str, expected: str, monkeypatch) -> None:
    target = PlantedTarget()
    planted = target._folder / "planted"
    try:
        planted.write_text("fine")
        assert target.run(1).findings == []
        planted.write_text(how)
        if how == "hangs":
            monkeypatch.setattr(PlantedTarget, "batch_s", 0.5)
        found = target.run(2).findings

        assert any(expected in finding.what for finding in found)
        if how == "raises":
            assert found[0].data == b"the bytes"

        monkeypatch.undo()
        planted.write_text("fine")
        assert target.run(3).frames == 20
    finally:
        target.close()


def test_a_seed_makes_the_same_choices() -> None:
    target = PlantedTarget()
    try:
        assert target.chance(7).random() == target.chance(7).random()
        assert target.chance(7).random() != random.Random("7").random()
    finally:
        target.close()
