"""Show the output of many processes on one terminal, each line with its process in front."""

import json
import logging
import threading
from typing import TextIO, final

from rich.text import Text

from gradmesh.launch.logs import readable
from gradmesh.launch.terminal import Terminal
from gradmesh.protos.printable import printable, printable_lines
from gradmesh.sdk.process.log import fields_of

_COLOURS = {
    "supervisor": "bold white",
    "coordinator": "magenta",
    "parameter-server": "cyan",
    "trainer": "green",
}


@final
class LogScreen:
    """Writes lines of children and of the supervisor itself; thread safe.

    Args:
        stream: Output stream.
        pretty: Whether to render JSON lines for a terminal; else they are written unchanged, and
            other lines with control characters as escapes.
        width: Width of the column of names.
    """

    def __init__(self, stream: TextIO, pretty: bool, width: int = 20) -> None:
        self._stream = stream
        self._console = Terminal(file=stream) if pretty else None
        self._width = width
        self._lock = threading.Lock()  # guards the stream, so that lines never mix

    def write(self, name: str, line: str) -> None:
        """Show one line of a process."""
        with self._lock:
            if self._console is None:
                self._stream.write(printable_lines(line) + "\n")
                self._stream.flush()
                return
            style = _COLOURS.get(name.rstrip("0123456789").rstrip("-"), "blue")
            for part in readable(line, colour=self._console.is_terminal).split("\n"):
                prefix = Text(f"{printable(name):<{self._width}} │ ", style=style)
                self._console.print(prefix + Text.from_ansi(part), soft_wrap=True)


@final
class ScreenHandler(logging.Handler):
    """Sends the supervisor's own log records to the screen."""

    def __init__(self, screen: LogScreen) -> None:
        super().__init__()
        self._screen = screen
        self._plain = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record in the format of the children's."""
        try:
            fields = fields_of(record, "supervisor", self._plain)
            self._screen.write("supervisor", json.dumps(fields, default=str))
        except Exception:
            self.handleError(record)
