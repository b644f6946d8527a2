import pytest

from gradmesh.protos.printable import MAX_SHOWN, printable, printable_lines, received_text


@pytest.mark.parametrize("text", ["", "trainer-0", "größer — 10 µs", "[/x] <b> \\x1b", "日本語"])
def test_printable_text_is_not_changed(text: str) -> None:
    assert printable(text) == printable_lines(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\x9bb\x07", "a\\x9bb\\x07"),
        ("a\nb\r\t", "a\\nb\\r\\t"),
        ("\u202ename\u2066\u200d\u2028", "\\u202ename\\u2066\\u200d\\u2028"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_other_characters_are_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_lines_keep_breaks_and_tabs() -> None:
    assert printable_lines("a\n\tb\x1b\n\nc\r\n") == "a\n\tb\\x1b\n\nc\\r\n"


def test_a_received_text_has_a_limit() -> None:
    text = received_text("begin" + "x" * 10 * MAX_SHOWN + "end")

    assert len(text) <= MAX_SHOWN + 3
    assert text.startswith("begin")
    assert text.endswith("end")
