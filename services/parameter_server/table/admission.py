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
    """Decides which ids without a row get one."""

    bytes: int = 0
    """Memory of the policy."""

    @abstractmethod
    def admit(self, ids: Ids, *, counts: bool) -> NDArray[np.bool_]:
        """Return for each id whether it gets a row.

        Args:
            ids: Ids without a row.
            counts: Whether this use counts.
        """

    @abstractmethod
    def reset(self) -> None:
        """Clear the counters."""


@final
class EveryId(AdmissionPolicy):
    """Admits every id."""

    def reset(self) -> None:
        """Do nothing: there are no counters."""

    def admit(self, ids: Ids, *, counts: bool) -> NDArray[np.bool_]:
        """Return True for all."""
        return np.ones(ids.size, np.bool_)


@final
class FrequentIds(AdmissionPolicy):
    """Admits an id at its k-th use. Counters are shared and never too low, so it may be earlier.

    Args:
        count: k.
        owned: The buckets of this server.
    """

    def __init__(self, count: int, owned: OwnedBuckets) -> None:
        self._count = count
        self._owned = owned
        self._counters = Reserved((owned.count, _COUNTERS_A_BUCKET), np.uint8)
        self._uses = np.zeros(owned.count, np.int64)
        self.bytes = self._counters.array.nbytes

    def admit(self, ids: Ids, *, counts: bool) -> NDArray[np.bool_]:
        """Return for each id whether it was used often enough."""
        admitted = np.empty(ids.size, np.bool_)
        sketch.count_uses(
            ids, self._owned.local, self._counters.array, self._uses, self._count, counts, admitted
        )
        return admitted

    def reset(self) -> None:
        """Set all counters to 0."""
        self._counters.clear()
        self._uses[:] = 0


@final
class DrawnIds(AdmissionPolicy):
    """Admits a fixed random share of all ids.

    Args:
        share: In (0, 1].
        seed: Seed of the hash that selects them.
    """

    def __init__(self, share: float, seed: int) -> None:
        self._limit = np.uint64(min(int(share * 2.0**64), 2**64 - 1))
        self._seed = np.uint64(seed % 2**64)

    def admit(self, ids: Ids, *, counts: bool) -> NDArray[np.bool_]:
        """Return for each id whether the hash selects it."""
        drawn = np.empty(ids.size, np.bool_)
        sketch.drawn(ids, self._seed, self._limit, drawn)
        return drawn

    def reset(self) -> None:
        """Do nothing: there are no counters."""


def make_admission(recipe: table_pb2.Recipe, owned: OwnedBuckets, seed: int) -> AdmissionPolicy:
    """Return the policy of a checked recipe."""
    if recipe.name == "frequency":
        return FrequentIds(int(recipe.settings["count"]), owned)
    if recipe.name == "probability":
        return DrawnIds(recipe.settings["share"], seed)
    return EveryId()
