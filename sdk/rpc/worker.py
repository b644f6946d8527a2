"""Who a process of the mesh is."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One process.

    Args:
        name: Unique in the mesh.
        rank: Its place among the workers, if it has one.
        incarnation: Distinguishes it from a former process of the name.
    """

    name: str
    rank: int | None = None
    incarnation: int = 0

    @property
    def id(self) -> int | None:
        """The rank, by the name other systems have for it."""
        return self.rank
