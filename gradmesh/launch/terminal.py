"""The console of all commands: text is text, whatever it contains."""

from collections.abc import Iterable
from typing import Any, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from gradmesh.protos.printable import printable, printable_lines


@final
class Terminal(Console):
    """A console that interprets no markup, and shows control characters as escapes.

    Names, addresses and messages of other processes reach the screen through it. A string is one
    line; only renderables such as tables break lines.

    Args:
        options: Those of rich's console, such as `file`, `stderr` and `width`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, *args: Any, **options: Any) -> Text:
        """Return a string as text; escaped here, so that columns have the right width."""
        options |= {"markup": False, "emoji": False}
        return super().render_str(printable(text), *args, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the pieces of any renderable, escaped."""
        for piece in super().render(renderable, options):
            if piece.control or piece.text.isprintable():
                yield piece
            else:
                yield Segment(printable_lines(piece.text), piece.style)
