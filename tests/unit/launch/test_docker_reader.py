from gradmesh.launch.docker.reader import _lines


def test_lines_are_whole_however_they_arrive() -> None:
    assert list(_lines(iter([b"a b", b"c\nd", b"", b"\n\xff\ne"]))) == ["a bc", "d", "\ufffd", "e"]
