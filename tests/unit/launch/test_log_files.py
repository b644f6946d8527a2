from pathlib import Path

import pytest

from gradmesh.launch.log_files import LogFiles


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "a.log").write_text('{"ts": "1", "message": "x"}\n{"ts": "3"}\ntraceback\n')
    (tmp_path / "b.log").write_text('{"ts": "2"}\n{"ts": "4"}\n{not json\n')
    return tmp_path


def test_lines_of_all_files_come_by_their_time(logs: Path) -> None:
    assert LogFiles(logs).newest() == [
        ("a", '{"ts": "1", "message": "x"}'),
        ("b", '{"ts": "2"}'),
        ("a", '{"ts": "3"}'),
        ("a", "traceback"),
        ("b", '{"ts": "4"}'),
        ("b", "{not json"),
    ]


def test_tail_counts_lines_of_each_file(logs: Path) -> None:
    assert LogFiles(logs, ["a"]).newest(1) == [("a", "traceback")]
    assert LogFiles(logs).newest(0) == []


def test_lines_are_given_once_and_whole(logs: Path) -> None:
    files = LogFiles(logs)
    files.newest()
    with (logs / "a.log").open("a") as log:
        log.write("half")
    (logs / "c.log").write_text("new\n")
    first = files.newest()
    with (logs / "a.log").open("a") as log:
        log.write(" and half\n")

    assert first == [("c", "new")]
    assert files.newest() == [("a", "half and half")]


def test_following_ends_after_the_last_line(logs: Path) -> None:
    def is_over() -> bool:
        # What is written before the end must still be seen.
        (logs / "d.log").write_text("last words\n")
        return True

    assert list(LogFiles(logs).follow(is_over, tail=0)) == [("d", "last words")]
