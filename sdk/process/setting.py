"""Settings: documented fields of configuration sections, and the problems found in them.

A section is a frozen dataclass whose fields are made by `setting`, so that the loader, the command
line and the table in docs/operations.md all read the same declaration.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, final, get_type_hints

from gradmesh.base_error import GradmeshError


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of the configuration.

    Attributes:
        key: The setting, as `section.key`, or the name of a file or variable.
        text: What is wrong and what to do about it.
        source: The source of the value, in words; empty when it is not one value.
    """

    key: str
    text: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" + (f" ({self.source})" if self.source else "")


@final
class ConfigError(ValueError, GradmeshError):
    """The configuration cannot be used; carries every problem, not just the first.

    Args:
        problems: What is wrong, at least one entry.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@final
class AddressInUse(OSError, RuntimeError, GradmeshError):
    """A process cannot listen on its address.

    Args:
        address: The address as configured, `host:port`.
        key: The setting that holds it, as `section.key`.
        cause: The reason from the operating system.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, address: str, key: str, cause: str = "address already in use") -> None:
        self.address = address
        super().__init__(
            f"cannot listen on {address!r}: {cause}; stop the process that holds it, "
            f"or set {key} to another address (port 0 takes a free one)"
        )


if TYPE_CHECKING:
    from gradmesh.sdk.process.config import Sections

T = TypeVar("T")

_METADATA = "gradmesh.setting"


class Section:
    """A table of the configuration file; subclasses are frozen, slotted, keyword-only dataclasses.

    Attributes:
        section: Name of the table, and of the variables GRADMESH_<SECTION>_<KEY>.
        flag_prefix: Prefix of the flags, such as `log-` in `--log-level`.
    """

    __slots__ = ()
    section: ClassVar[str]
    flag_prefix: ClassVar[str] = ""

    def problems(self) -> Iterable[Problem]:
        """Yield conflicts between the fields of this section, keyed by the field's name."""
        return ()

    def problems_with(self, sections: "Sections") -> Iterable[Problem]:
        """Yield conflicts between this section and the others that were loaded with it."""
        return ()


@final
@dataclass(frozen=True, slots=True)
class SettingRule:
    """What `setting` adds to a field: its help text and the values it accepts."""

    help: str
    minimum: float | None = None
    maximum: float | None = None
    check: Callable[[Any], Any] | None = None
    hidden: bool = False
    flag: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a section, as the loader, the command line and the docs need it."""

    section: str
    name: str
    annotation: Any
    default: Any
    flag: str
    rule: SettingRule

    @property
    def key(self) -> str:
        """The name in the configuration file, `section.name`."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"GRADMESH_{self.section}_{self.name}".upper()


def setting(
    default: T,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    check: Callable[[Any], Any] | None = None,
    hidden: bool = False,
    flag: str | None = None,
) -> T:
    """Declare a field of a section.

    Args:
        default: The value when nothing is configured; immutable.
        help: The meaning in one sentence, for `--help` and docs/operations.md.
        minimum: Smallest number accepted.
        maximum: Largest number accepted.
        check: Takes the converted value and returns the final one, or raises ValueError with
            what is expected. Not called for None.
        hidden: Whether `--help` omits it, for what only the supervisor sets.
        flag: The flag, where it does not follow from the name.

    Returns:
        The dataclass field, typed as its default so that type checkers see the field's type.
    """
    rule = SettingRule(help, minimum, maximum, check, hidden, flag)
    return dataclasses.field(default=default, metadata={_METADATA: rule})


def settings(section: type[Section]) -> tuple[Setting, ...]:
    """Return the settings of a section in the order of declaration."""
    hints = get_type_hints(section)
    return tuple(
        Setting(
            section=section.section,
            name=field.name,
            annotation=hints[field.name],
            default=field.default,
            flag=field.metadata[_METADATA].flag
            or "--" + (section.flag_prefix + field.name).replace("_", "-"),
            rule=field.metadata[_METADATA],
        )
        for field in dataclasses.fields(cast(Any, section))
    )
