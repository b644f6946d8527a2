"""Which new ids of a hash table get a row."""

from abc import ABC, abstractmethod
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import sketch
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.sharding import Ids
from gradmesh.services.parameter_server.table.index import OwnedBuckets
from gradmesh.services.parameter_server.table.memory import Reserved

# One byte each; an id shares two of them with others.
_COUNTERS_A_BUCKET = 2048


class AdmissionPolicy(ABC):
    """Decides about ids that have no row."""

    bytes: int = 0
    """Memory that deciding takes."""

    @abstractmethod
    def admit(self, ids: Ids, *, counts: bool) -> NDArray[np.bool_]:
        """Return for each id whether it gets a row.

        Args:
            ids: Without a row.
            counts: Whether this is a use that counts.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget what was counted."""


@final
class EveryId(AdmissionPolicy):
    """Admits all."""

    def reset(self) -> None:
        """Nothing was counted."""

    def admit(self, ids: Ids, *, counts: bool) -> NDArray[np.bool_]:
        """Return True for all."""
        return np.ones(ids.size, np.bool_)


@final
class FrequentIds(AdmissionPolicy):
    """Admits an id at its k-th use, or a little earlier: counters are shared, never too low.

    Args:
        count: k.
        owned: Whose buckets are here.
    """

    def __init__(self, count: int, owned: OwnedBuckets) -> None:
        self._count = count
        self._owned = owned
        self._counters = Reserved((owned.count, _COUNTERS_A_BUCKET), np.uint8)
        self._uses = np.zeros(owned.count, np.int64)
        self.bytes = self._counters.array.nbytes

    def admit(self, ids: Ids, *, counts: bool) -> NDArray[np.bool_]:
        """Return whether each id was seen often enough."""
        seen = np.empty(ids.size, np.bool_)
        sketch.count_uses(
            ids, self._owned.local, self._counters.array, self._uses, self._count, counts, seen
        )
        return seen

    def reset(self) -> None:
        """Set all counters to 0."""
        self._counters.clear()
        self._uses[:] = 0


@final
class DrawnIds(AdmissionPolicy):
    """Admits a share of all ids, always the same ones.

    Args:
        share: In (0, 1].
        seed: Of the draw.
    """

    def __init__(self, share: float, seed: int) -> None:
        self._limit = np.uint64(min(int(share * 2.0**64), 2**64 - 1))
        self._seed = np.uint64(seed % 2**64)

    def admit(self, ids: Ids, *, counts: bool) -> NDArray[np.bool_]:
        """Return whether each id was drawn."""
        drawn = np.empty(ids.size, np.bool_)
        sketch.drawn(ids, self._seed, self._limit, drawn)
        return drawn

    def reset(self) -> None:
        """Nothing was counted."""


def make_admission(recipe: table_pb2.Recipe, owned: OwnedBuckets, seed: int) -> AdmissionPolicy:
    """Return the admission that a checked recipe names."""
    if recipe.name == "frequency":
        return FrequentIds(int(recipe.settings["count"]), owned)
    if recipe.name == "probability":
        return DrawnIds(recipe.settings["share"], seed)
    return EveryId()
