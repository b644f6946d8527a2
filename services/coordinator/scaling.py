"""The reshard, the shard map that it makes, and the journal that knows both at once."""

import json
import logging
from collections.abc import Sequence
from typing import final

from gradmesh.protos.coordinator.v1 import membership_pb2, reshard_pb2
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.reshards import ADOPTING, Reshards
from gradmesh.services.coordinator.shards import Shards

_log = logging.getLogger(__name__)


@final
class Scaling:
    """The part of the machine that changes the number of parameter servers.

    Args:
        journal: Where facts are kept.
        configured: How many servers the coordinator was started for. As many as it was scaled to
            count instead, as long as this number is the one that it was scaled from.

    Attributes:
        shards: The shard map.
        reshards: The newest reshard.
    """

    def __init__(self, journal: Journal, configured: int) -> None:
        self._journal = journal
        self._configured = configured
        memory = journal.fact("scaled")
        before, count = json.loads(memory) if memory else (configured, configured)
        self.shards = Shards(
            count if before == configured else configured, journal.fact("shard_map")
        )
        self.reshards = Reshards(journal.fact("reshard"))

    @property
    def number(self) -> int:
        """Number of the reshard under way; 0 for none."""
        return self.reshards.state.number if self.reshards.under_way else 0

    def scale(
        self,
        request: reshard_pb2.ScaleParameterServersRequest,
        servers: Sequence[membership_pb2.Member],
        now: float,
    ) -> reshard_pb2.Reshard:
        """Begin a reshard, or return the one under way to the same number."""
        before = self.reshards.state.number
        self.reshards.scale(request.parameter_servers, request.wait_s, self.shards.map, now)
        if self.reshards.state.number != before:
            self.reshards.plan(servers, self.shards.map, now)
            self._keep()
        return self.reshards.shown()

    def report(self, request: reshard_pb2.ReportMoveRequest, now: float) -> reshard_pb2.Reshard:
        """Take notice of how far a server is."""
        if self.reshards.report(request, self.shards.map, now):
            if self.reshards.state.phase == ADOPTING:
                self.shards.replace(self.reshards.state.map)
            self._keep()
        return self.reshards.shown()

    def welcome(self, member: membership_pb2.Member) -> None:
        """Take notice of a process that has registered."""
        if self.reshards.check_member(member, self.shards.map):
            self._keep()

    def plan(self, servers: Sequence[membership_pb2.Member], now: float) -> None:
        """Go on if servers were waited for and are there."""
        if self.reshards.plan(servers, self.shards.map, now):
            self._keep()

    def drop(self, name: str) -> None:
        """Take notice of a process that is gone."""
        if self.reshards.drop(name, self.shards.map):
            self._keep()

    def expire(self, now: float) -> bool:
        """Give up what takes too long; return whether that was so."""
        given_up = self.reshards.expire(now, self.shards.map)
        if given_up:
            self._keep()
        return given_up

    def describe(self) -> str:
        """Return what is under way, for whoever looks; empty if nothing is."""
        if not self.number:
            return ""
        state = self.reshards.shown()
        return (
            f"parameter servers are being scaled to {state.parameter_servers}: {_phase(state)}, "
            f"{state.buckets_moved} of {state.buckets} buckets moved"
        )

    def participants(self) -> set[str]:
        """Return the servers that a reshard under way cannot do without."""
        return self.reshards.participants(self.shards.map)

    def _keep(self) -> None:
        """Have the journal know the reshard, and with it the map that it has made."""
        state = self.reshards.state
        facts = {"reshard": self.reshards.remember()}
        if state.phase == ADOPTING:
            facts["shard_map"] = self.shards.map.SerializeToString()
            facts["scaled"] = json.dumps([self._configured, self.shards.count]).encode()
        self._journal.set_facts(facts)
        extra = {
            "reshard": state.number,
            "phase": _phase(state),
            "parameter_servers": state.parameter_servers,
        }
        if state.error:
            _log.warning("reshard given up", extra={**extra, "error": state.error})
        else:
            _log.info("reshard", extra=extra)

    def check_invariants(self) -> None:
        """Return if map, reshard and journal agree; for tests.

        Raises:
            AssertionError: They do not.
        """
        shards = [shard.name for shard in self.shards.map.shards]
        assert len(shards) == len(set(shards))
        assert bool(shards) == bool(self.shards.map.epoch)
        assert self._journal.fact("shard_map") == self.shards.map.SerializeToString()
        assert self._journal.fact("reshard") == self.reshards.remember()
        self.reshards.check_invariants(self.shards.map)


def _phase(state: reshard_pb2.Reshard) -> str:
    return reshard_pb2.ReshardPhase.Name(state.phase).rpartition("_")[2].lower()
