import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gradmesh.launch.logs import LogFiles, LogSource, complete_lines, follow_sources, readable


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


def test_lines_are_returned_once_and_complete(logs: Path) -> None:
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


def test_log_following_ends_after_the_last_line(logs: Path) -> None:
    def is_over() -> bool:
        # Lines written before the end must still appear.
        (logs / "d.log").write_text("last words\n")
        return True

    assert list(LogFiles(logs).follow(is_over, tail=0)) == [("d", "last words")]


def test_lines_are_complete_for_any_chunks() -> None:
    chunks = iter([b"a b", b"c\nd", b"", b"\n\xff\ne"])

    assert list(complete_lines(chunks)) == ["a bc", "d", "\ufffd", "e"]


def test_sources_are_followed_until_the_cluster_is_gone() -> None:
    is_second_there = threading.Event()
    is_over = threading.Event()
    asked: list[tuple[str, int | None]] = []

    def lines(name: str, tail: int | None) -> Iterator[str]:
        asked.append((name, tail))
        yield f"begin of {name}"
        is_over.wait(120)
        yield f"end of {name}"

    def find() -> tuple[list[LogSource], bool]:
        names = ["a", "b"] if is_second_there.is_set() else ["a"]
        sources = [LogSource(name, f"trainer-{name}", partial(lines, name)) for name in names]
        return sources, not is_over.is_set()

    followed = follow_sources(find, 5, 0.01)

    assert next(followed) == ("trainer-a", "begin of a")
    is_second_there.set()
    assert next(followed) == ("trainer-b", "begin of b")
    is_over.set()
    assert sorted(followed) == [("trainer-a", "end of a"), ("trainer-b", "end of b")]
    assert asked == [("a", 5), ("b", None)]


def test_configuration_is_left_out() -> None:
    line = json.dumps({"ts": "", "level": "info", "message": "starting", "pid": 1, "config": {}})

    assert readable(line).endswith("starting pid=1")


def test_lines_that_only_look_like_json_stay() -> None:
    assert readable("{oops") == "{oops"
    assert readable('{"a": 1}') == '{"a": 1}'
