"""Local errors of a process: they never cross the wire and carry the exit code they end with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the configuration.

    Attributes:
        key: The setting, as `section.key`, or the name of a file or variable.
        text: What is wrong and what to do about it.
        source: Where the value came from, in words; empty when it is not one value.
    """

    key: str
    text: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" + (f" ({self.source})" if self.source else "")


@final
class ConfigError(ValueError):
    """The configuration cannot be used; carries every problem, not just the first.

    Args:
        problems: What is wrong, at least one entry.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@final
class AddressInUse(OSError, RuntimeError):
    """A process cannot listen on its address.

    Args:
        address: The address as configured, `host:port`.
        key: The setting that holds it, as `section.key`.
        cause: What the operating system said.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, address: str, key: str, cause: str = "address already in use") -> None:
        self.address = address
        super().__init__(
            f"cannot listen on {address!r}: {cause}; stop the process that holds it, "
            f"or set {key} to another address (port 0 takes a free one)"
        )
