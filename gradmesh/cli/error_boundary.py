"""The error boundary of the command line: one line for foreseen errors, a traceback for bugs."""

import io
import logging
import sys
import traceback

import click

from gradmesh.cli.output import echo, echo_lines

_OUT_OF_REACH = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
_CALLERS_MISTAKE = frozenset(
    {
        "ALREADY_EXISTS",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
    }
)
_BUG = 1
_USAGE = 2
_LOST_MESH = 3
_UNRECOVERABLE = 4
_INTERRUPTED = 130


def run(command: click.Command, arguments: list[str] | None) -> int:
    """Run a command and turn its result or error into an exit code."""
    try:
        code = command.main(arguments, prog_name="gradmesh", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        echo_lines(shown.getvalue().rstrip("\n"), err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe such as `gradmesh status | head` has ended: not an error.
        sys.stderr.close()
        return 0
    except Exception as error:
        report(error)
        return exit_code(error)


def exit_code(error: BaseException) -> int:
    """Return the documented exit code of an error."""
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        return code
    status = getattr(error, "code", None)
    if status in _OUT_OF_REACH:
        return _LOST_MESH
    if status in _CALLERS_MISTAKE:
        return _USAGE
    return _UNRECOVERABLE if is_foreseen(error) else _BUG


def report(error: BaseException) -> None:
    """Print an error on standard error, in the form a user needs."""
    if not is_foreseen(error):
        _print_traceback(error)
        echo("error: this is a bug in gradmesh; please report it with the lines above", err=True)
        return
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        _print_traceback(error)
    for line in getattr(error, "log_tail", ()):
        echo(f"  │ {line.expandtabs()}", err=True)
    for line in str(error).splitlines():
        echo(f"error: {line.expandtabs()}", err=True)


def _print_traceback(error: BaseException) -> None:
    # It quotes the messages of errors that other workers sent.
    echo_lines("".join(traceback.format_exception(error)).rstrip(), err=True)


def is_foreseen(error: BaseException) -> bool:
    """Return whether an error is one of ours, or the operating system refusing a file."""
    ours = type(error).__module__.partition(".")[0] == "gradmesh"
    return ours or (isinstance(error, OSError) and error.filename is not None)
