"""The coordinator's state and its rules, without network, threads or clock.

Each method is one event; time comes with it. What others will rely on is in the journal before the
method returns. The servicer holds the lock.
"""

import logging
from collections.abc import Iterable
from typing import final

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import worker_pb2
from gradmesh.protos.coordinator.v1 import (
    membership_pb2,
    rendezvous_pb2,
    status_pb2,
    table_pb2,
)
from gradmesh.protos.errors import InvalidRequest, NotMember, ProtocolMismatch
from gradmesh.protos.naming import check_name
from gradmesh.protos.version import PROTOCOL
from gradmesh.services.coordinator.board import Board
from gradmesh.services.coordinator.catalogue import Catalogue
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.members import Members
from gradmesh.services.coordinator.rounds import Rounds
from gradmesh.services.coordinator.shards import Shards

_log = logging.getLogger(__name__)


@final
class Machine:
    """All that the cluster agrees on.

    Args:
        parameter_servers: How many hold the tables.
        trainers: How many form a generation.
        lease_s: How long a silent member counts as alive.
        journal: Where facts are kept.
    """

    def __init__(
        self, *, parameter_servers: int, trainers: int, lease_s: float, journal: Journal
    ) -> None:
        self._journal = journal
        self._round = journal.fact("round")
        # Until when trainers that a former coordinator knew may come back; None until it is known.
        self._awaits_former = True
        self._awaited_until: float | None = None
        self.members = Members(lease_s)
        self.rounds = Rounds(trainers, self._round)
        self.shards = Shards(parameter_servers, journal.fact("shard_map"))
        self.catalogue = Catalogue(journal.tables())
        self.board = Board()

    def register(
        self, request: membership_pb2.RegisterRequest, now: float
    ) -> membership_pb2.RegisterResponse:
        """Make a process a member."""
        if request.protocol != PROTOCOL:
            raise ProtocolMismatch(
                f"{request.member.name!r} speaks {request.protocol!r}, the coordinator "
                f"{PROTOCOL!r}; run the same version of gradmesh on both",
                theirs=request.protocol,
                ours=PROTOCOL,
            )
        member = request.member
        former = self.members.register(member, request.replace, now)
        joined = self.rounds.joined.get(member.name, member.incarnation)
        if former is not None or joined != member.incarnation:
            _log.warning("member restarted", extra={"worker": member.name})
            self._on_gone(member.name)
        self._refresh_shards()
        return membership_pb2.RegisterResponse(
            lease_s=self.members.lease_s, generation=self.rounds.current
        )

    def renew(
        self,
        name: str,
        incarnation: int,
        now: float,
        open_contexts: int = 0,
        openers: Iterable[worker_pb2.WorkerId] = (),
    ) -> membership_pb2.RenewLeaseResponse:
        """Note a sign of life; tell which workers that opened contexts are gone."""
        members = self.members
        members.renew(name, incarnation, now, open_contexts)
        return membership_pb2.RenewLeaseResponse(
            lease_s=self.members.lease_s,
            generation=self.rounds.current,
            shard_epoch=self.shards.map.epoch,
            gone=[one for one in openers if members.is_gone(one.name, one.incarnation)],
        )

    def leave(self, name: str, incarnation: int) -> None:
        """End a membership at the member's own wish."""
        member = self.members.leave(name, incarnation)
        if member is not None:
            _log.info("member left", extra={"worker": name})
            self._on_gone(name)
            self._refresh_shards()

    def expire(self, now: float) -> bool:
        """End the memberships whose lease ran out; return whether there were any."""
        gone = [member.name for member in self.members.expire(now)]
        gone += self._never_came_back(now)
        for name in gone:
            _log.warning("member lost", extra={"worker": name, "silent_s": self.members.lease_s})
            self._on_gone(name)
        if gone:
            self._refresh_shards()
        return bool(gone)

    def _never_came_back(self, now: float) -> list[str]:
        """Return the trainers of a former coordinator that did not register here, once."""
        if not self._awaits_former:
            return []
        if self._awaited_until is None:
            self._awaited_until = now + self.members.lease_s
        if now < self._awaited_until:
            return []
        self._awaits_former = False
        return [name for name in self.rounds.joined if not self.members.has(name)]

    def _on_gone(self, name: str) -> None:
        self.board.forget(name)
        if self.rounds.drop(name):
            _log.warning("generation over", extra={"lost": name, "next": self.rounds.current})
        self._keep_round()

    def _keep_round(self) -> None:
        """Have the journal know the current generation and its trainers."""
        if (fact := self.rounds.remember()) != self._round:
            self._journal.set_fact("round", fact)
            self._round = fact

    def _refresh_shards(self) -> None:
        if self.shards.refresh(self.members.of_role(membership_pb2.ROLE_PARAMETER_SERVER)):
            self._journal.set_fact("shard_map", self.shards.map.SerializeToString())
            if self.shards.map.epoch > 1:
                # A server that came back holds other rows than the run has seen. With the first
                # map there was no run yet.
                self.rounds.close()
                self._keep_round()

    def join(self, request: rendezvous_pb2.JoinRoundRequest) -> bool:
        """Take a trainer into the round; return whether that formed a generation."""
        member = self.members.check(request.name, request.incarnation)
        if member.role != membership_pb2.ROLE_TRAINER:
            raise NotMember(f"{request.name!r} is no trainer", name=request.name)
        formed = self.rounds.join(request.name, request.incarnation, request.after_generation)
        self._keep_round()
        if formed:
            _log.info("generation formed", extra={"generation": self.rounds.current})
        return formed

    def place(self, request: rendezvous_pb2.JoinRoundRequest) -> rendezvous_pb2.JoinRoundResponse:
        """Return the place of a trainer that joined."""
        generation, rank = self.rounds.place(request.name, request.incarnation)
        return rendezvous_pb2.JoinRoundResponse(
            generation=generation, rank=rank, world_size=self.rounds.world_size
        )

    def put(self, request: rendezvous_pb2.PutKeyRequest) -> None:
        """Publish a value to a generation."""
        check_name("key", request.key)
        if len(request.value) > limits.MAX_VALUE_BYTES:
            raise InvalidRequest(
                f"key {request.key!r}: {len(request.value)} bytes; at most "
                f"{limits.MAX_VALUE_BYTES} are allowed",
                key=request.key,
            )
        self.rounds.put(request.generation, request.key, request.value)

    def create_table(self, spec: table_pb2.TableSpec) -> bool:
        """Enter a table; return False when an equal one was there."""
        created = self.catalogue.is_new(spec)
        if created:
            self._journal.add_table(spec)
            self.catalogue.enter(spec)
            _log.info("table created", extra={"table": spec.name, "rows": spec.rows})
        return created

    def shard_map(self) -> table_pb2.ShardMap:
        """Return the current shard map."""
        return self.shards.current(self.members.of_role(membership_pb2.ROLE_PARAMETER_SERVER))

    def report(self, request: status_pb2.ReportProgressRequest) -> None:
        """Keep a trainer's progress."""
        self.members.check(request.name, request.incarnation)
        self.board.report(request.name, request.progress)

    def finish(self, request: status_pb2.ReportResultRequest) -> None:
        """Keep the outcome of a run."""
        self.rounds.check(request.generation)
        self.board.finish(request.generation, dict(request.figures))

    def status(self, now: float) -> status_pb2.GetStatusResponse:
        """Return everything at a glance."""
        response = status_pb2.GetStatusResponse(
            generation=self.rounds.current if self.rounds.formed else 0,
            shard_epoch=self.shards.map.epoch,
            tables=[spec.name for spec in self.catalogue.all()],
            result=self.board.result,
            result_generation=self.board.result_generation,
        )
        for lease in self.members.leases():
            entry = response.members.add(
                member=lease.member,
                silence_s=now - lease.seen_at,
                open_contexts=lease.open_contexts,
            )
            progress = self.board.progress(lease.member.name)
            if progress is not None:
                entry.progress.CopyFrom(progress)
        return response
