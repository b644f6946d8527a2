"""Paths that files name stay inside a folder."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmesh.sdk.process.confined import confined, is_device_name


def test_plain_paths_are_joined(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.txt").write_text("x")

    assert confined("a/b.txt", tmp_path) == tmp_path / "a/b.txt"
    assert confined("a", tmp_path) == tmp_path / "a"
    assert confined("not/there", tmp_path) == tmp_path / "not/there"
    assert confined("…/ä%2F..b", tmp_path) == tmp_path / "…/ä%2F..b"
    assert confined("a/b", "bucket/runs/") == "bucket/runs/a/b"


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "/",
            "/a",
            "..",
            "a/..",
            "a/../b",
            ".",
            "a/./b",
            "a//b",
            "a/",
            "a\\b",
            "a\0b",
            "a\nb",
        ),
        *("C:", "c:a", "s3://b/a", "x" * 2000, "con", "a/NUL.txt", "Com1", "lpt9.x", None, 3, b"a"),
    ],
)
def test_others_are_refused(tmp_path: Path, path: object) -> None:
    for root in (tmp_path, "bucket/runs"):
        with pytest.raises(ValueError, match="path"):
            confined(path, root)


def test_links_may_stay_inside_and_not_leave(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (root / "in").symlink_to("a")
    (root / "out").symlink_to("../outside")
    (root / "absolute").symlink_to("/etc")
    (root / "loop").symlink_to("loop")
    (tmp_path / "other").symlink_to(root)

    assert confined("in/x", root) == root / "in/x"
    assert confined("a", tmp_path / "other") == tmp_path / "other/a"
    for path in ("out", "out/x", "absolute/passwd", "loop"):
        with pytest.raises(ValueError, match=r"link|followed"):
            confined(path, root)


def test_pipes_sockets_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name in ("pipe", "socket"):
            with pytest.raises(ValueError, match="device, a pipe or a socket"):
                confined(name, tmp_path)


@given(st.text(max_size=30))
def test_any_text_is_inside_or_a_value_error(tmp_path_factory: pytest.TempPathFactory, text: str):
    root = tmp_path_factory.getbasetemp()
    try:
        found = confined(text, root)
    except ValueError:
        return
    assert Path(os.path.normpath(found)).is_relative_to(root)
    assert found != root


def test_names_of_devices_in_any_case_and_with_extensions() -> None:
    assert all(map(is_device_name, ("aux", "AUX.safetensors", "COM0")))
    assert not any(map(is_device_name, ("auxiliary", "user", "communication", "nulls")))
