"""A setting: one documented field of a configuration section.

A section is a frozen dataclass whose fields are made by `setting`, so that the loader, the
command line and the table in docs/operations.md all read the same declaration.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, final, get_type_hints

from gradmesh.sdk.process.errors import Problem

if TYPE_CHECKING:
    from gradmesh.sdk.process.config import Sections

T = TypeVar("T")

_METADATA = "gradmesh.setting"


class Section:
    """A table of the configuration file; subclasses are frozen, slotted, keyword-only dataclasses.

    Attributes:
        section: Name of the table, and of the variables GRADMESH_<SECTION>_<KEY>.
        flag_prefix: What the command line puts before the key, such as `log-` in `--log-level`.
    """

    __slots__ = ()
    section: ClassVar[str]
    flag_prefix: ClassVar[str] = ""

    def problems(self) -> Iterable[Problem]:
        """Yield what is wrong between the fields of this section, keyed by the field's name."""
        return ()

    def problems_with(self, sections: "Sections") -> Iterable[Problem]:
        """Yield what is wrong between this section and the others that were loaded with it."""
        return ()


@final
@dataclass(frozen=True, slots=True)
class Rule:
    """What `setting` adds to a field: its meaning and the values it accepts."""

    help: str
    minimum: float | None = None
    maximum: float | None = None
    check: Callable[[Any], Any] | None = None
    hidden: bool = False
    flag: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a section, with everything the loader, the flags and the docs need."""

    section: str
    name: str
    annotation: Any
    default: Any
    flag: str
    rule: Rule

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
        help: What the setting means, in one sentence, for `--help` and docs/operations.md.
        minimum: Smallest number accepted.
        maximum: Biggest number accepted.
        check: Takes the converted value, returns the one to keep, or raises ValueError with
            what is expected. Not called for None.
        hidden: Whether `--help` leaves it out, for what only the supervisor sets.
        flag: Its flag, where that is not made from its name.

    Returns:
        The dataclass field, typed as its default so that type checkers see the field's type.
    """
    rule = Rule(help, minimum, maximum, check, hidden, flag)
    return dataclasses.field(default=default, metadata={_METADATA: rule})


def settings(section: type[Section]) -> tuple[Setting, ...]:
    """List the settings of a section in the order of their declaration."""
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
