"""Displays of the commands: progress of a run or of moving rows, results, tables."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gradmesh.launch.terminal import Terminal
from gradmesh.sdk.cluster.status import ClusterStatus

_LINE_EVERY_S = 3.0


class ProgressScreen(ABC):
    """Shows the progress of a run; a context manager."""

    @abstractmethod
    def update(self, status: ClusterStatus) -> None:
        """Show the newest status; called several times a second."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Show a line that stays, above the bar. Called from other threads too."""

    @abstractmethod
    def close(self) -> None:
        """End the display; the last state stays visible."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def progress_screen(title: str, console: Terminal | None = None) -> ProgressScreen:
    """Return a moving bar on a terminal, else lines every few seconds."""
    console = console or Terminal()
    return BarScreen(title, console) if console.is_terminal else LineScreen(title, console)


@final
class BarScreen(ProgressScreen):
    """A bar with step, loss and samples per second."""

    def __init__(self, title: str, console: Terminal) -> None:
        console.print(title, style="bold")
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("step"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._progress.add_task("starting", total=None, figures="")
        self._progress.start()

    def update(self, status: ClusterStatus) -> None:
        """Move the bar."""
        self._progress.update(
            self._task,
            description=stage(status),
            total=status.total_steps or None,
            completed=status.step,
            figures=figures(status),
        )

    def note(self, text: str) -> None:
        """Print above the bar."""
        self._progress.console.print(text)

    def close(self) -> None:
        """Stop the bar."""
        self._progress.stop()


@final
class LineScreen(ProgressScreen):
    """One line every few seconds, for logs and pipes."""

    def __init__(
        self, title: str, console: Terminal, clock: Callable[[], float] = time.monotonic
    ) -> None:
        console.print(title, soft_wrap=True)
        self._console = console
        self._clock = clock
        self._due = clock()
        self._last = ""

    def update(self, status: ClusterStatus) -> None:
        """Write a line when one is due, or when the stage has changed."""
        now, news = self._clock(), stage(status)
        if now >= self._due or news != self._last:
            self._due = now + _LINE_EVERY_S
            self._last = news
            steps = f" step {status.step}/{status.total_steps}" if status.total_steps else ""
            self._console.print(f"{news}{steps} {figures(status)}".rstrip(), soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Do nothing: printed lines need no cleanup."""


@final
class NoteHandler(logging.Handler):
    """Shows log records of this process as notes, so that they do not break the bar."""

    def __init__(self, screen: ProgressScreen) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        """Show the message of a record."""
        self._screen.note(record.getMessage())


def stage(status: ClusterStatus) -> str:
    """Return the cluster's stage in one word."""
    if status.result:
        return "done"
    if not status.total_steps:
        return "starting" if len(status.members) < 2 else "preparing"
    return "training" if status.step < status.total_steps else "evaluating"


def figures(status: ClusterStatus) -> str:
    """Return loss and speed in words."""
    if status.loss is None:
        return ""
    return f"loss {status.loss:.4f}  {status.samples_per_s:,.0f} samples/s"


@final
class ResultTable:
    """The results of a finished run as a table.

    Args:
        result: By name; names without a label are not shown.
    """

    _LABELS: Mapping[str, tuple[str, Callable[[float], str]]] = {
        "auc": ("AUC, held out", lambda v: f"{v:.4f}"),
        "best_auc": ("best AUC the teacher allows", lambda v: f"{v:.4f}"),
        "log_loss": ("log loss, held out", lambda v: f"{v:.4f}"),
        "normalised_entropy": ("normalised entropy", lambda v: f"{v:.4f}"),
        "calibration": ("calibration", lambda v: f"{v:.4f}"),
        "samples": ("samples seen", lambda v: f"{v:,.0f}"),
        "samples_per_s": ("samples/s", lambda v: f"{v:,.0f}"),
        "bad_lines": ("bad lines skipped", lambda v: f"{v:,.0f}"),
        "bytes_moved": ("bytes moved", lambda v: in_bytes(v)),
        "seconds": ("time", lambda v: f"{v:.1f} s"),
    }

    def __init__(self, result: Mapping[str, float]) -> None:
        self._result = result

    def rows(self) -> list[tuple[str, str]]:
        """Return labels and values."""
        return [
            (label, write(self._result[name]))
            for name, (label, write) in self._LABELS.items()
            if name in self._result
        ]

    def show(self, console: Terminal | None = None) -> None:
        """Print the table."""
        table = Table(show_header=False)
        table.add_column(justify="left")
        table.add_column(justify="right", style="bold")
        for label, value in self.rows():
            table.add_row(label, value)
        (console or Terminal()).print(table)


def in_bytes(count: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@final
class RowBar:
    """A progress callback and a context manager.

    Args:
        title: Name of the operation.
        unit: Unit of the count.
    """

    def __init__(self, title: str, unit: str = "rows") -> None:
        console = Terminal(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=None)

    def __call__(self, done: int, total: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=done, total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()


def output_console() -> Terminal:
    """Return a console for standard output that does not truncate lines in a pipe."""
    console = Terminal()
    return console if console.is_terminal else Terminal(width=200)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on standard output."""
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    output_console().print(table)
