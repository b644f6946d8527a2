"""The shard map and the reshards that change it, written to the journal together."""

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
    """The shard map; a new one is made whenever a parameter server joins or changes.

    Args:
        count: Number of parameter servers that hold the tables.
        stored: The map before a restart of the coordinator, as bytes; empty at first.
    """

    def __init__(self, count: int, stored: bytes = b"") -> None:
        self._count = count
        self.map = table_pb2.ShardMap.FromString(stored)

    @property
    def count(self) -> int:
        """Number of parameter servers that hold the tables."""
        return self._count

    def replace(self, map_: table_pb2.ShardMap) -> None:
        """Set the map of a reshard; from now on its number of servers is expected."""
        self._count = len(map_.shards)
        self.map = map_

    def refresh(self, servers: list[membership_pb2.Member]) -> bool:
        """Match the map to the parameter servers; return whether its epoch advanced.

        A server keeps its shard while it is a member, because it holds the rows of that shard.
        Servers beyond the expected number are spare.
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
                f"{len(alive)} of {self._count} parameter servers have joined: "
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
        journal: Where facts are stored.
        configured: Number of servers in the coordinator's settings. After a reshard the number it
            was scaled to counts instead, until this setting changes.

    Attributes:
        shards: The shard map.
        reshards: The newest reshard.
    """

    def __init__(self, journal: Journal, configured: int) -> None:
        self._journal = journal
        self._configured = configured
        stored = journal.fact("scaled")
        before, count = json.loads(stored) if stored else (configured, configured)
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
        """Record a server's progress."""
        if self.reshards.report(request, self.shards.map, now):
            if self.reshards.state.phase == ADOPTING:
                self.shards.replace(self.reshards.state.map)
            self._save()
        return self.reshards.status()

    def welcome(self, member: membership_pb2.Member) -> None:
        """Abort the reshard if a process that registers is a restarted participant."""
        if self.reshards.check_member(member, self.shards.map):
            self._save()

    def plan(self, servers: Sequence[membership_pb2.Member], now: float) -> None:
        """Start copying if the reshard waited for servers and all have joined."""
        if self.reshards.plan(servers, self.shards.map, now):
            self._save()

    def drop(self, name: str) -> None:
        """Abort the reshard if a lost process takes part."""
        if self.reshards.drop(name, self.shards.map):
            self._save()

    def expire(self, now: float) -> bool:
        """Abort the reshard if its deadline has passed; return whether it was aborted."""
        given_up = self.reshards.expire(now, self.shards.map)
        if given_up:
            self._save()
        return given_up

    def describe(self) -> str:
        """Return a sentence about the reshard under way; empty if there is none."""
        if not self.number:
            return ""
        state = self.reshards.status()
        return (
            f"parameter servers are being scaled to {state.parameter_servers}: {_phase(state)}, "
            f"{state.buckets_moved} of {state.buckets} buckets moved"
        )

    def participants(self) -> set[str]:
        """Return the servers whose loss would abort the reshard under way."""
        return self.reshards.participants(self.shards.map)

    def _save(self) -> None:
        """Write the reshard to the journal, and the map if the reshard has made it current."""
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
        """Check that map, reshard and journal agree; for tests.

        Raises:
            AssertionError: An invariant is violated.
        """
        shards = [shard.name for shard in self.shards.map.shards]
        assert len(shards) == len(set(shards))
        assert bool(shards) == bool(self.shards.map.epoch)
        assert self._journal.fact("shard_map") == self.shards.map.SerializeToString()
        assert self._journal.fact("reshard") == self.reshards.dump()
        self.reshards.check_invariants(self.shards.map)


def _phase(state: reshard_pb2.Reshard) -> str:
    return reshard_pb2.ReshardPhase.Name(state.phase).rpartition("_")[2].lower()
