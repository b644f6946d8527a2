"""Lifetime of the rows of a hash table: admission of new ids, and eviction of rows."""

import math
from dataclasses import dataclass, field
from typing import final

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest

_MAX_COUNT = 255
_MAX_STEPS = 2**31


@final
@dataclass(frozen=True, slots=True)
class Admission:
    """The admission policy of a hash table: which new ids get a row.

    Other ids read as their initial row and ignore gradients.

    Args:
        name: "frequency" or "probability".
        settings: Its number.

    Raises:
        InvalidRequest: The admission is unknown, or its number is wrong.
    """

    name: str
    settings: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name == "frequency":
            _check_whole("admission 'frequency'", self.settings, "count", _MAX_COUNT)
        elif self.name == "probability":
            share = self.settings.get("share", math.nan)
            if set(self.settings) != {"share"} or not 0 < share <= 1:
                raise InvalidRequest(
                    f"admission 'probability' takes a share above 0 up to 1, not {self.settings}"
                )
        else:
            raise InvalidRequest(f"no admission {self.name!r}; there are frequency, probability")

    @classmethod
    def frequency(cls, count: int) -> "Admission":
        """Admit an id when it is used for the count-th time."""
        return cls("frequency", {"count": float(count)})

    @classmethod
    def probability(cls, share: float) -> "Admission":
        """Admit a share of all ids, drawn by a hash of the table's seed and the id."""
        return cls("probability", {"share": share})


@final
@dataclass(frozen=True, slots=True)
class Eviction:
    """The eviction policy of a hash table: which rows are dropped first.

    Args:
        name: "lru", "lfu" or "ttl".
        settings: For "ttl", the steps.

    Raises:
        InvalidRequest: The eviction is unknown, or its number is wrong.
    """

    name: str
    settings: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name == "ttl":
            _check_whole("eviction 'ttl'", self.settings, "steps", _MAX_STEPS)
        elif self.name not in ("lru", "lfu"):
            raise InvalidRequest(f"no eviction {self.name!r}; there are lru, lfu, ttl")
        elif self.settings:
            raise InvalidRequest(f"eviction {self.name!r} takes no numbers, not {self.settings}")

    @classmethod
    def lru(cls) -> "Eviction":
        """Evict the least recently used rows."""
        return cls("lru")

    @classmethod
    def lfu(cls) -> "Eviction":
        """Evict the least frequently used rows."""
        return cls("lfu")

    @classmethod
    def ttl(cls, steps: int) -> "Eviction":
        """Let a row expire after this number of steps of the table without a use."""
        return cls("ttl", {"steps": float(steps)})


def lifetime_recipe(source: Admission | Eviction | None) -> table_pb2.Recipe | None:
    """Return an admission or eviction as its message."""
    return source and table_pb2.Recipe(name=source.name, settings=source.settings)


def _check_whole(what: str, settings: dict[str, float], name: str, most: int) -> None:
    value = settings.get(name, math.nan)
    if set(settings) != {name} or not (1 <= value <= most and value % 1 == 0):
        raise InvalidRequest(f"{what} takes {name}, a whole number 1 to {most}, not {settings}")
