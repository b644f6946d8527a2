"""One check of the doctor: what was tried, what was seen, what to do."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

State: TypeAlias = Literal["ok", "note", "problem"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        check: What was checked, in a word or two.
        state: Whether it is fine; a note does not fail the command.
        tried: What the doctor did.
        seen: What it saw.
        remedy: What the operator should do; empty if nothing.
    """

    check: str
    state: State
    tried: str
    seen: str
    remedy: str = ""


def fine(check: str, tried: str, seen: str) -> Finding:
    """Return the finding of a check that found nothing wrong."""
    return Finding(check=check, state="ok", tried=tried, seen=seen)


def note(check: str, tried: str, seen: str, remedy: str) -> Finding:
    """Return the finding of something that works but could be better."""
    return Finding(check=check, state="note", tried=tried, seen=seen, remedy=remedy)


def problem(check: str, tried: str, seen: str, remedy: str) -> Finding:
    """Return the finding of something that does not work."""
    return Finding(check=check, state="problem", tried=tried, seen=seen, remedy=remedy)
