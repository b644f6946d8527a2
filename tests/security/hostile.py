"""Texts that attack a terminal, a log, a console's markup or a page."""

CONTROL = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b1A\x00\r\b"
FORGED = "FORGED a line of its own"
PAGE = "<script>alert(1)</script>\" onload='x'"
TEXT = f"[/x][bold]{CONTROL}\u202e\u200b{PAGE}\n{FORGED}\u2028{FORGED}"

NAMES = ["[/x]", "a\x1b[31mb", "a\nb", "<b>", "a b", "\u202ename", "n" * 300]
ADDRESSES = ["h:1\x1b[2J", "h\n:1", "[/x]:1", "<i>:1", "h", "h:1/x", "h" * 300 + ":1", "a b:1"]


def assert_harmless(output: str) -> None:
    """Check that output holds no control character, and no line that the text made up."""
    lines = output.split("\n")
    assert [char for line in lines for char in line if not char.isprintable()] == []
    assert [line for line in lines if line.strip().startswith(FORGED)] == []
