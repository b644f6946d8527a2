"""How the number of parameter servers changes while they serve. Pure: events carry the time.

A reshard has phases. A phase ends when every server that takes part in it has reported it. Until
the new shard map is the current one, the reshard aborts without any change if a server is lost,
restarts or reports an error. From then on it can only be completed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import final

from gradmesh.protos.coordinator.v1 import membership_pb2, reshard_pb2, table_pb2
from gradmesh.protos.errors import InvalidRequest, ReshardUnderWay
from gradmesh.protos.limits import natural_key
from gradmesh.protos.sharding import BUCKETS, rebalance

WAITING = reshard_pb2.RESHARD_PHASE_WAITING
COPYING = reshard_pb2.RESHARD_PHASE_COPYING
STOPPING = reshard_pb2.RESHARD_PHASE_STOPPING
DRAINING = reshard_pb2.RESHARD_PHASE_DRAINING
SENDING = reshard_pb2.RESHARD_PHASE_SENDING
ADOPTING = reshard_pb2.RESHARD_PHASE_ADOPTING
DONE = reshard_pb2.RESHARD_PHASE_DONE
ABORTED = reshard_pb2.RESHARD_PHASE_ABORTED

_WAIT_S = 60.0
_COPY_S = 24 * 3600.0
# How long a reshard may hold steps up; less than the deadline of a trainer's call.
_HOLD_S = 20.0


@final
class Reshards:
    """The newest reshard.

    Args:
        stored: What `dump` returned before a restart of the coordinator; empty at first.
    """

    def __init__(self, stored: bytes = b"") -> None:
        self.state = reshard_pb2.Reshard.FromString(stored)
        self._reports: dict[str, reshard_pb2.ReportMoveRequest] = {}
        self._seconds = _limit_of(self.state.phase)
        # None until an event gives the time, as after a restart of the coordinator.
        self._until: float | None = None

    def dump(self) -> bytes:
        """Return the state for the journal; servers repeat their reports."""
        return self.state.SerializeToString(deterministic=True)

    def status(self) -> reshard_pb2.Reshard:
        """Return the reshard with the progress that servers have reported."""
        found = reshard_pb2.Reshard()
        found.CopyFrom(self.state)
        moved = sum(report.buckets_moved for report in self._reports.values())
        is_moved = self.state.phase in (ADOPTING, DONE)
        found.buckets_moved = self.state.buckets if is_moved else min(moved, self.state.buckets)
        return found

    @property
    def under_way(self) -> bool:
        """Whether the reshard has begun and not ended."""
        return bool(self.state.number) and self.state.phase not in (DONE, ABORTED)

    @property
    def may_abort(self) -> bool:
        """Whether the current map is still the old one."""
        return self.under_way and self.state.phase != ADOPTING

    def scale(
        self, count: int, wait_s: float, current: table_pb2.ShardMap, now: float
    ) -> reshard_pb2.Reshard:
        """Begin a reshard, or return the one under way to the same number.

        Raises:
            InvalidRequest: The number is out of range.
            ReshardUnderWay: A reshard to another number is under way.
        """
        if not 1 <= count <= BUCKETS or not wait_s >= 0:
            raise InvalidRequest(
                f"{count} parameter servers cannot hold the tables; there are 1 to {BUCKETS}",
                parameter_servers=count,
            )
        if self.under_way:
            if self.state.parameter_servers != count:
                raise ReshardUnderWay(
                    f"the parameter servers are being scaled to {self.state.parameter_servers} "
                    f"already, not to {count}; wait until that has ended",
                    parameter_servers=self.state.parameter_servers,
                )
            return self.state
        self.state = reshard_pb2.Reshard(
            number=self.state.number + 1,
            version=self.state.version,
            parameter_servers=count,
        )
        self._reports.clear()
        if count == len(current.shards):
            self._enter(DONE)
        else:
            self._enter(WAITING, now, wait_s or _WAIT_S)
        return self.state

    def plan(
        self, servers: Sequence[membership_pb2.Member], current: table_pb2.ShardMap, now: float
    ) -> bool:
        """Make the next map if all its servers are members; return whether it was made."""
        if self.state.phase != WAITING:
            return False
        alive = {member.name: member for member in servers}
        names = self._choose([shard.name for shard in current.shards], alive)
        if len(names) < self.state.parameter_servers:
            return False
        place = {name: shard for shard, name in enumerate(names)}
        owners = [current.shards[shard].name for shard in current.bucket_shards]
        buckets = rebalance([place.get(owner, -1) for owner in owners], len(names))
        self.state.map.CopyFrom(
            table_pb2.ShardMap(
                epoch=current.epoch + 1,
                shards=[
                    table_pb2.Shard(name=m.name, address=m.address, incarnation=m.incarnation)
                    for m in (alive[name] for name in names)
                ],
                bucket_shards=buckets,
            )
        )
        moves = zip(owners, buckets, strict=True)
        self.state.buckets = sum(owner != names[shard] for owner, shard in moves)
        self._enter(COPYING, now, _COPY_S)
        return True

    def _choose(self, held: Sequence[str], alive: Mapping[str, membership_pb2.Member]) -> list[str]:
        """Return the servers of the next map: the first of the current ones, then spare ones."""
        kept = set(sorted(held, key=natural_key)[: self.state.parameter_servers])
        if not kept <= alive.keys():
            return []
        spare = sorted(alive.keys() - set(held), key=natural_key)
        return [*(name for name in held if name in kept), *spare][: self.state.parameter_servers]

    def check_member(self, member: membership_pb2.Member, current: table_pb2.ShardMap) -> bool:
        """Abort if a participating server has restarted; return whether that aborted it."""
        known = self._incarnations(current).get(member.name, member.incarnation)
        return known != member.incarnation and self._abort_lost(member.name, "has restarted")

    def drop(self, name: str, current: table_pb2.ShardMap) -> bool:
        """Abort if a lost server takes part; return whether that aborted it."""
        self._reports.pop(name, None)
        return name in self._incarnations(current) and self._abort_lost(name, "is gone")

    def _abort_lost(self, name: str, how: str) -> bool:
        return self.abort(f"{name} {how}; scale again")

    def abort(self, why: str) -> bool:
        """Abort the reshard if it still may; return whether it was aborted."""
        if not self.may_abort:
            return False
        self.state.error = why
        self._enter(ABORTED)
        return True

    def participants(self, current: table_pb2.ShardMap) -> set[str]:
        """Return the servers whose loss would abort the reshard."""
        return set(self._incarnations(current)) if self.may_abort else set()

    def _incarnations(self, current: table_pb2.ShardMap) -> dict[str, int]:
        """Return the incarnations of the servers of both maps; empty before there is a next map."""
        if not self.state.HasField("map"):
            return {}
        shards = [*current.shards, *self.state.map.shards]
        return {shard.name: shard.incarnation for shard in shards}

    def report(
        self, request: reshard_pb2.ReportMoveRequest, current: table_pb2.ShardMap, now: float
    ) -> bool:
        """Record a server's progress; return whether that ended the phase.

        When the phase becomes ADOPTING, the caller makes the next map the current one.
        """
        if request.reshard != self.state.number or not self.under_way:
            return False
        self._reports[request.name] = request
        if request.error:
            return self.abort(f"{request.name}: {request.error}")
        return self._advance(current, now)

    def _advance(self, current: table_pb2.ShardMap, now: float) -> bool:
        phase = self.state.phase
        if phase == WAITING or self._unfinished(current):
            return False
        if phase == DRAINING and not self._is_one_generation(current):
            return False
        enter: Mapping[int, Callable[[], object]] = {
            COPYING: lambda: self._enter(STOPPING, now, _HOLD_S),
            STOPPING: lambda: self._stop([shard.name for shard in current.shards]),
            DRAINING: lambda: self._enter(SENDING),
            SENDING: lambda: self._commit(current.epoch),
            ADOPTING: lambda: self._enter(DONE),
        }
        enter[phase]()
        return True

    def _unfinished(self, current: table_pb2.ShardMap) -> list[str]:
        """Return the servers that have not finished the phase.

        New servers take part in COPYING only: they have no steps to complete. A server that
        replaces a permanently lost one has nothing to adopt, and reports that.
        """
        shards = [*current.shards, *(self.state.map.shards if self.state.phase == COPYING else ())]
        return sorted({s.name for s in shards if self._done(s.name) < self.state.phase})

    def _is_one_generation(self, current: table_pb2.ShardMap) -> bool:
        """Return whether all servers prepared the step in one generation, so that none drops it."""
        found = {self._reports[shard.name].generation for shard in current.shards}
        return len(found) == 1 or not self.state.HasField("step")

    def _done(self, name: str) -> int:
        report = self._reports.get(name)
        return 0 if report is None else report.done

    def _stop(self, old: Sequence[str]) -> None:
        """Choose the last step that all servers complete; the deadline stays."""
        reports = [self._reports[name] for name in old]
        origins = {report.origin for report in reports}
        # Servers without a common run have no step to complete.
        if len(origins) == 1 and origins != {0}:
            self.state.step = max(report.begun_steps for report in reports)
        self._enter(DRAINING)

    def _commit(self, epoch: int) -> None:
        self.state.map.epoch = epoch + 1
        self._enter(ADOPTING)

    def expire(self, now: float, current: table_pb2.ShardMap) -> bool:
        """Abort the reshard if its deadline has passed; return whether it was aborted."""
        if self._seconds is None:
            return False
        if self._until is None:
            self._until = now + self._seconds
        if now <= self._until:
            return False
        if self.state.phase == WAITING:
            return self.abort(
                f"fewer than {self.state.parameter_servers} parameter servers joined within "
                f"{self._seconds:g} s; start the others and scale again"
            )
        return self.abort(
            f"{', '.join(self._unfinished(current))} did not finish within {self._seconds:g} s; "
            "scale again"
        )

    def _enter(
        self,
        phase: reshard_pb2.ReshardPhase,
        now: float | None = None,
        seconds: float | None = None,
    ) -> None:
        self.state.phase = phase
        self.state.version += 1
        # One deadline covers all phases that hold steps up.
        if phase not in (DRAINING, SENDING):
            self._seconds = seconds
            self._until = None if now is None or seconds is None else now + seconds

    def check_invariants(self, current: table_pb2.ShardMap) -> None:
        """Check that the reshard is consistent; for tests.

        Raises:
            AssertionError: An invariant is violated.
        """
        state = self.state
        assert bool(state.number) == (state.phase != reshard_pb2.RESHARD_PHASE_UNSPECIFIED)
        assert bool(state.error) == (state.phase == ABORTED)
        if state.phase in (COPYING, STOPPING, DRAINING, SENDING):
            assert state.map.epoch == current.epoch + 1
            assert len(state.map.shards) == state.parameter_servers != len(current.shards)
        if state.phase == ADOPTING:
            assert state.map.epoch <= current.epoch
            assert list(state.map.bucket_shards) == list(current.bucket_shards)
        if state.HasField("map"):
            sizes = [0] * len(state.map.shards)
            for shard in state.map.bucket_shards:
                sizes[shard] += 1
            assert sum(sizes) == BUCKETS
            assert max(sizes) - min(sizes) <= 1


def _limit_of(phase: int) -> float | None:
    """Return the time limit of a phase after the coordinator restarted in it."""
    if phase in (WAITING, COPYING):
        return _WAIT_S if phase == WAITING else _COPY_S
    return _HOLD_S if COPYING < phase < ADOPTING else None
