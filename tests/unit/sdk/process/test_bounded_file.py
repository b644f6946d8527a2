"""Files of settings and descriptions, read with bounds."""

import os
from pathlib import Path

import pytest

from gradmesh.sdk.process.bounded_file import (
    MAX_DEPTH,
    check_depth,
    parse_json,
    read_bounded,
    read_json,
    read_toml,
)


def test_files_up_to_the_bound_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")

    assert read_bounded(tmp_path / "a", 5) == b"12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_bounded(tmp_path / "a", 4)
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "b", 4)


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises((ValueError, IsADirectoryError)):
            read_bounded(path, 4)


def test_nesting_has_a_bound(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[" * 5 + "]" * 5)
    assert read_json(tmp_path / "a") == [[[[[]]]]]

    for depth in (MAX_DEPTH + 1, 900, 100_000):
        with pytest.raises(ValueError, match="nested deeper"):
            parse_json("[" * depth + "]" * depth)
        with pytest.raises(ValueError, match="nested deeper"):
            parse_json('{"a":' * depth + "1" + "}" * depth)
    check_depth({"a": [1, 2, {"b": ()}]})


@pytest.mark.parametrize("text", ["", "{", "9" * 5000, b"\xff\xfe", '{"a": 1} x'])
def test_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the messages are those of the parser
        parse_json(text)


def test_long_lists_of_toml_go_over_several_lines(tmp_path: Path) -> None:
    names = [f'"{n}.txt"' for n in range(600)]
    (tmp_path / "a").write_text(f"train = [{', '.join(names)}]\n")
    with pytest.raises(ValueError, match="line 1 has more than 512 dots"):
        read_toml(tmp_path / "a")

    (tmp_path / "a").write_text("train = [\n" + ",\n".join(names) + "]\n")
    assert len(read_toml(tmp_path / "a")["train"]) == 600
