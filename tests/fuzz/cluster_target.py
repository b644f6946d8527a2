"""What the targets that attack a running cluster have in common."""

from __future__ import annotations

import random
from abc import abstractmethod

from gradmesh.protos.errors import MeshError
from tests.fuzz.batch import Batch, Finding, Target
from tests.fuzz.cluster import FuzzCluster
from tests.fuzz.functions import NAMES
from tests.fuzz.words import KEPT, OTHERS, OWN, SCRATCH, Words


class ClusterTarget(Target):
    """Sends frames to a cluster, then examines it.

    Args:
        cluster: The cluster, shared by several targets.
    """

    def __init__(self, cluster: FuzzCluster) -> None:
        self.cluster = cluster
        self._number = 0

    def run(self, seed: int) -> Batch:
        """Send the frames of a seed; examine the cluster afterwards."""
        if self._number != self.cluster.number:
            self.disconnect()
            self._number = self.cluster.number
        batch = Batch()
        try:
            self.send(self.chance(seed), batch)
        except (OSError, MeshError, RuntimeError) as error:
            # The examination says why, if the cluster has ended.
            batch.findings.append(Finding(f"the fuzzer cannot go on: {error!r}"))
            self.disconnect()
        batch.findings += self.cluster.examine()
        return batch

    @abstractmethod
    def send(self, chance: random.Random, batch: Batch) -> None:
        """Send the frames of a seed and record their answers."""

    def disconnect(self) -> None:
        """Drop connections to a cluster that has ended."""

    def words(self, chance: random.Random, may_write: bool = True) -> Words:
        """Return the vocabulary of callers that may write to tables, or of those that may not."""
        return Words(
            tables=SCRATCH if may_write else (*SCRATCH, *KEPT),
            workers=OWN if may_write else (*OWN, *OTHERS),
            functions=NAMES,
            epoch=self.cluster.state.epoch,
            incarnations=(1, 2, self.cluster.state.incarnation, 2**64 - 1),
            first=chance.randrange(1, 1 << 40),
        )
