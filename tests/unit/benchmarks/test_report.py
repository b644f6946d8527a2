import json
from pathlib import Path

from gradmesh.benchmarks.report import Row, show_line, write_json


def test_a_row_holds_medians_and_their_ratio(tmp_path: Path) -> None:
    row = Row.of("pull-1-shm", [1.0, 2.0, 9.0], [8.0, 4.0, 1.0])

    write_json([row], tmp_path / "rows.json")

    (read,) = json.loads((tmp_path / "rows.json").read_text())
    assert (read["workload"], read["ours"], read["peer"], read["ratio"]) == ("pull-1-shm", 2, 4, 2)
    assert read["samples"] == 3
    assert "2.00" in show_line(row)


def test_a_row_without_a_peer_has_no_ratio() -> None:
    row = Row.of("pull-1-shm", [1.0], [])

    assert row.ratio is None
    assert show_line(row).endswith("-")
