"""What the targets that attack a running cluster have in common."""

from __future__ import annotations

import random
from abc import abstractmethod
from dataclasses import replace

from gradmesh.protos.errors import MeshError
from tests.fuzz.batch import Batch, Finding, Target
from tests.fuzz.callers import writes
from tests.fuzz.cluster import FuzzCluster
from tests.fuzz.functions import NAMES
from tests.fuzz.rpc_frames import FrameMaker
from tests.fuzz.words import KEPT, OTHERS, OWN, SCRATCH, Words

_LOST = (OSError, MeshError, RuntimeError)


class ClusterTarget(Target):
    """Sends frames to a cluster, then examines it.

    Args:
        cluster: The cluster, shared by several targets.
    """

    def __init__(self, cluster: FuzzCluster) -> None:
        self.cluster = cluster
        self._number = 0
        self._epoch = 0

    def run(self, seed: int) -> Batch:
        """Send the frames of a seed; examine the cluster afterwards."""
        if self._number != self.cluster.number:
            self.disconnect()
            self._number = self.cluster.number
            self._epoch = self.cluster.state.epoch
        batch = Batch()
        try:
            self.send(self.chance(seed), batch)
        except _LOST:
            # A valid frame may have ended the membership of its caller: connect again, once.
            self._reconnect()
            batch = Batch()
            try:
                self.send(self.chance(seed), batch)
            except _LOST as error:
                # The examination says why, if the cluster has ended.
                batch.findings.append(Finding(f"the fuzzer cannot go on: {error!r}"))
                self._reconnect()
        batch.findings += self.cluster.examine()
        return batch

    def _reconnect(self) -> None:
        self.disconnect()
        self.cluster.reconnect()

    @abstractmethod
    def send(self, chance: random.Random, batch: Batch) -> None:
        """Send the frames of a seed and record their answers."""

    def disconnect(self) -> None:
        """Drop connections to a cluster that has ended."""

    def maker(self, chance: random.Random, caller: str) -> FrameMaker:
        """Return what draws the requests of a caller."""
        words = self.words(chance, caller)
        return FrameMaker(chance, words, replace(words, workers=OWN))

    def words(self, chance: random.Random, caller: str) -> Words:
        """Return the vocabulary of a caller: its own name, and what it may change."""
        member = self.cluster.caller(caller)
        return Words(
            tables=SCRATCH if writes(caller) else (*SCRATCH, *KEPT),
            workers=(member.name, *OWN) if writes(caller) else (*OWN, *OTHERS),
            functions=NAMES,
            epoch=self._epoch,
            incarnations=(member.incarnation, member.incarnation, 1, 2**64 - 1),
            first=chance.randrange(1, 1 << 40),
        )
