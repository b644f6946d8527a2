import json

from gradmesh.benchmarks.report import Row, as_json, show_line


def test_a_row_holds_medians_and_their_ratio() -> None:
    row = Row.of("pull-1-shm", [1.0, 2.0, 9.0], [8.0, 4.0, 1.0])

    (read,) = json.loads(json.dumps(as_json([row])))
    assert (read["workload"], read["ours"], read["peer"], read["ratio"]) == ("pull-1-shm", 2, 4, 2)
    assert read["samples"] == 3
    assert "2.00" in show_line(row)


def test_a_row_without_a_peer_has_no_ratio() -> None:
    row = Row.of("pull-1-shm", [1.0], [])

    assert row.ratio is None
    assert show_line(row).endswith("-")
