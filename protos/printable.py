"""Text of other processes and of files, made safe to show.

A terminal obeys control characters: they move the cursor, change its title, or hide what follows.
A log reader believes line breaks, and a person believes what bidirectional marks have reordered.
Such text is shown with all of these as escapes; other text is not changed.
"""

import re

MAX_SHOWN = 64 * 2**10
"""Characters of an error from another process that are kept."""

_LINES = re.compile(r"([\n\t]+)")


def printable(text: str) -> str:
    r"""Return text as one line, with characters that are not printable as escapes such as \x1b."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def printable_lines(text: str) -> str:
    """Return text as `printable` does, but keep its line breaks and tabs."""
    if text.isprintable():
        return text
    parts = _LINES.split(text)
    parts[::2] = map(printable, parts[::2])
    return "".join(parts)


def received_text(text: str) -> str:
    """Return the message of an error from another process: printable, and without an excess."""
    if len(text) > MAX_SHOWN:
        text = f"{text[: MAX_SHOWN // 2]}\n…\n{text[-MAX_SHOWN // 2 :]}"
    return printable_lines(text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
