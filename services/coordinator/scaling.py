"""The reshard, the shard map that it makes, and the journal that knows both at once."""

import json
import logging
from collections.abc import Sequence
from typing import final

from gradmesh.protos.coordinator.v1 import membership_pb2, reshard_pb2, table_pb2
from gradmesh.protos.errors import ShardNotReady
from gradmesh.protos.limits import natural_key
from gradmesh.protos.sharding import even_buckets
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.reshard import ADOPTING, Reshards


@final
class Shards:
    """The shard map, made anew whenever a parameter server comes or changes.

    Args:
        count: How many parameter servers hold the tables.
        memory: The map before a restart of the coordinator, as bytes; empty at first.
    """

    def __init__(self, count: int, memory: bytes = b"") -> None:
        self._count = count
        self.map = table_pb2.ShardMap.FromString(memory)

    @property
    def count(self) -> int:
        """How many parameter servers hold the tables."""
        return self._count

    def replace(self, map_: table_pb2.ShardMap) -> None:
        """Take a map in which buckets have moved; from now on as many servers are expected."""
        self._count = len(map_.shards)
        self.map = map_

    def refresh(self, servers: list[membership_pb2.Member]) -> bool:
        """Make the map fit the parameter servers; return whether its epoch advanced.

        A server keeps its shard as long as it lives, whoever else comes: its rows are those of
        that shard. Servers beyond the expected number wait for a gap.
        """
        if len(servers) < self._count:
            return False
        chosen = self._choose({member.name: member for member in servers})
        shards = [
            table_pb2.Shard(name=m.name, address=m.address, incarnation=m.incarnation)
            for m in chosen
        ]
        if list(self.map.shards) == shards:
            return False
        buckets = self.map.bucket_shards if self._fits else even_buckets(self._count)
        self.map = table_pb2.ShardMap(
            epoch=self.map.epoch + 1, shards=shards, bucket_shards=buckets
        )
        return True

    @property
    def _fits(self) -> bool:
        return len(self.map.shards) == self._count

    def _choose(self, alive: dict[str, membership_pb2.Member]) -> list[membership_pb2.Member]:
        held = [shard.name for shard in self.map.shards] if self._fits else [""] * self._count
        spare = iter(sorted(alive.keys() - set(held), key=natural_key))
        return [alive[name if name in alive else next(spare)] for name in held]

    def current(self, servers: list[membership_pb2.Member]) -> table_pb2.ShardMap:
        """Return the map.

        Raises:
            ShardNotReady: A parameter server of the map is missing.
        """
        alive = {member.name for member in servers}
        held = {shard.name for shard in self.map.shards}
        if len(held) != self._count or not held <= alive:
            raise ShardNotReady(
                f"{len(alive)} of {self._count} parameter servers are here: "
                f"{', '.join(sorted(alive, key=natural_key)) or 'none'}; start the others",
                present=len(alive),
                expected=self._count,
            )
        return self.map


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
            self._save()
        return self.reshards.status()

    def report(self, request: reshard_pb2.ReportMoveRequest, now: float) -> reshard_pb2.Reshard:
        """Take notice of how far a server is."""
        if self.reshards.report(request, self.shards.map, now):
            if self.reshards.state.phase == ADOPTING:
                self.shards.replace(self.reshards.state.map)
            self._save()
        return self.reshards.status()

    def welcome(self, member: membership_pb2.Member) -> None:
        """Take notice of a process that has registered."""
        if self.reshards.check_member(member, self.shards.map):
            self._save()

    def plan(self, servers: Sequence[membership_pb2.Member], now: float) -> None:
        """Go on if servers were waited for and are there."""
        if self.reshards.plan(servers, self.shards.map, now):
            self._save()

    def drop(self, name: str) -> None:
        """Take notice of a process that is gone."""
        if self.reshards.drop(name, self.shards.map):
            self._save()

    def expire(self, now: float) -> bool:
        """Give up what takes too long; return whether that was so."""
        given_up = self.reshards.expire(now, self.shards.map)
        if given_up:
            self._save()
        return given_up

    def describe(self) -> str:
        """Return what is under way, for whoever looks; empty if nothing is."""
        if not self.number:
            return ""
        state = self.reshards.status()
        return (
            f"parameter servers are being scaled to {state.parameter_servers}: {_phase(state)}, "
            f"{state.buckets_moved} of {state.buckets} buckets moved"
        )

    def participants(self) -> set[str]:
        """Return the servers that a reshard under way cannot do without."""
        return self.reshards.participants(self.shards.map)

    def _save(self) -> None:
        """Have the journal know the reshard, and with it the map that it has made."""
        state = self.reshards.state
        facts = {"reshard": self.reshards.dump()}
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
        assert self._journal.fact("reshard") == self.reshards.dump()
        self.reshards.check_invariants(self.shards.map)


def _phase(state: reshard_pb2.Reshard) -> str:
    return reshard_pb2.ReshardPhase.Name(state.phase).rpartition("_")[2].lower()
