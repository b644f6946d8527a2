"""The coordinator's state and its rules, without network, threads or clock.

Each method is one event and carries the time. State that other processes rely on is in the journal
before the method returns. The servicer holds the lock.
"""

import logging
from typing import final

from gradmesh.protos.common.v1 import worker_pb2
from gradmesh.protos.coordinator.v1 import (
    data_pb2,
    membership_pb2,
    rendezvous_pb2,
    reshard_pb2,
    status_pb2,
    table_pb2,
)
from gradmesh.protos.errors import NotMember, ProtocolMismatch, ShardNotReady
from gradmesh.protos.page import page_of
from gradmesh.protos.version import PROTOCOL
from gradmesh.sdk.transport.call import UNRESTRICTED, Caller
from gradmesh.services.coordinator.catalogue import Catalogue
from gradmesh.services.coordinator.data_set import DataSetSpec, Stored, read_position
from gradmesh.services.coordinator.data_sets import DataSets
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.members import MemberLease, Members, order
from gradmesh.services.coordinator.rendezvous import Rendezvous
from gradmesh.services.coordinator.reports import FinishedJobs, Reports
from gradmesh.services.coordinator.requests import Openers, openers_of
from gradmesh.services.coordinator.scaling import Scaling
from gradmesh.services.coordinator.sessions import Sessions

_log = logging.getLogger(__name__)

# Warnings about silent members in a status; the others are counted.
_MAX_WARNINGS = 100


@final
class Machine:
    """The state that all processes of the cluster agree on.

    Args:
        parameter_servers: Number of parameter servers that hold the tables.
        trainers: Most trainers of a generation.
        lease_s: How long a member counts as alive without a heartbeat.
        journal: Where facts are stored.
        min_trainers: Trainers that suffice for a generation when no more join; 0 requires all.
        join_window_s: Seconds without another join before fewer trainers than all suffice.
    """

    def __init__(
        self,
        *,
        parameter_servers: int,
        trainers: int,
        lease_s: float,
        journal: Journal,
        min_trainers: int = 0,
        join_window_s: float = 3.0,
    ) -> None:
        self._journal = journal
        self._round = journal.fact("round")
        # How long members of the journal may come back; None until an event gives the time.
        self._awaits_former = True
        self._awaited_until: float | None = None
        self.members = Members(lease_s, journal)
        self.sessions = Sessions(self.members)
        self.rendezvous = Rendezvous(
            trainers, self._round, minimum=min_trainers, window_s=join_window_s
        )
        self.scaling = Scaling(journal, parameter_servers)
        self.shards = self.scaling.shards
        self.catalogue = Catalogue(journal.tables())
        self.jobs = FinishedJobs(journal.fact("jobs"))
        self.reports = Reports(self.jobs.newest)
        if known := journal.fact("result"):
            result = status_pb2.ReportResultRequest.FromString(known)
            self.reports.finish(result.generation, dict(result.figures))
        self.data_sets = DataSets()
        for name, position in journal.data_sets():
            self.data_sets.restore(name, read_position(name, position, with_assignments=True))

    def register(
        self,
        request: membership_pb2.RegisterRequest,
        now: float,
        *,
        caller: Caller = UNRESTRICTED,
        newest_ns: int | None = None,
    ) -> membership_pb2.RegisterResponse:
        """Make a process a member.

        Args:
            request: The process.
            now: The time.
            caller: Who sends the request.
            newest_ns: The greatest incarnation that a process can have by now; None for no limit.
        """
        if request.protocol != PROTOCOL:
            raise ProtocolMismatch(
                f"{request.member.name!r} speaks {request.protocol!r}, the coordinator "
                f"{PROTOCOL!r}; run the same version of gradmesh on both",
                theirs=request.protocol,
                ours=PROTOCOL,
            )
        member = request.member
        self.sessions.check_registration(request, caller)
        # Without authentication a session proves nothing, and no secret needs to be stored.
        session = request.session if caller.is_authenticated else b""
        former = self.members.register(
            member, request.replace, now, session=session, newest_ns=newest_ns
        )
        joined = self.rendezvous.joined.get(member.name, member.incarnation)
        if former is not None or joined != member.incarnation:
            _log.warning("member restarted", extra={"worker": member.name})
            self._on_gone(member.name)
        self.scaling.welcome(member)
        self._refresh_shards(now)
        return membership_pb2.RegisterResponse(
            lease_s=self.members.lease_s,
            generation=self.rendezvous.current,
            authenticates=caller.is_authenticated,
        )

    def renew(
        self,
        request: membership_pb2.RenewLeaseRequest,
        now: float,
        contexts: Openers | None = None,
    ) -> membership_pb2.RenewLeaseResponse:
        """Record a heartbeat; return updates.

        Args:
            request: The heartbeat.
            now: The time.
            contexts: The openers in it, if they were read already.
        """
        contexts = openers_of(request) if contexts is None else contexts
        if self.members.renew(request.name, request.incarnation, now, contexts):
            self._refresh_shards(now)  # a member from before a restart
        return self.updates(request, contexts)

    def updates(
        self, request: membership_pb2.RenewLeaseRequest, contexts: Openers
    ) -> membership_pb2.RenewLeaseResponse:
        """Return updates for a member, and which openers of its contexts are gone.

        Raises:
            NotMember: It is not a member any more.
        """
        members = self.members
        members.check(request.name, request.incarnation)
        return membership_pb2.RenewLeaseResponse(
            lease_s=self.members.lease_s,
            generation=self.rendezvous.current,
            shard_epoch=self.shards.map.epoch,
            checkpoint_request=self.reports.requests,
            reshard=self.scaling.number,
            gone=[
                worker_pb2.WorkerId(name=name, incarnation=incarnation)
                for name, incarnation in contexts
                if members.is_gone(name, incarnation)
            ],
        )

    def leave(self, name: str, incarnation: int) -> None:
        """End a membership on the member's request."""
        member = self.members.leave(name, incarnation)
        if member is not None:
            _log.info("member left", extra={"worker": name})
            self._on_gone(name)
            self._refresh_shards(None)

    def expire(self, now: float) -> bool:
        """End memberships whose lease ran out, and waits for trainers that do not join.

        Returns:
            Whether anything changed.
        """
        gone = [member.name for member in self.members.expire(now)]
        gone += self._not_returned(now)
        for name in gone:
            _log.warning("member lost", extra={"worker": name, "silent_s": self.members.lease_s})
            self._on_gone(name)
        if gone:
            self._refresh_shards(now)
        formed = self.rendezvous.form_after_window(now)
        if formed:
            self._save_generation()
            self._log_formed()
        given_up = self.scaling.expire(now)
        return bool(gone) or formed or given_up

    def _not_returned(self, now: float) -> list[str]:
        """Return, once, the members from before a restart that did not come back."""
        if not self._awaits_former:
            return []
        if self._awaited_until is None:
            self._awaited_until = now + self.members.lease_s
        if now < self._awaited_until:
            return []
        self._awaits_former = False
        known = {*self.rendezvous.joined, *self.rendezvous.awaited, *self.data_sets.workers()}
        known |= self.scaling.participants()
        return sorted(name for name in known if not self.members.has(name))

    def _on_gone(self, name: str) -> None:
        self.reports.drop(name)
        for dataset in self.data_sets.drop(name):
            self._save_data_set(dataset)
        self.scaling.drop(name)
        if self.rendezvous.drop(name):
            _log.warning("generation over", extra={"lost": name, "next": self.rendezvous.current})
        self._save_generation()

    def _save_generation(self) -> None:
        """Write the current generation and its trainers to the journal."""
        if (fact := self.rendezvous.dump()) != self._round:
            self._journal.set_fact("round", fact)
            self._round = fact

    def _servers(self) -> list[membership_pb2.Member]:
        return self.members.of_role(membership_pb2.ROLE_PARAMETER_SERVER)

    def _refresh_shards(self, now: float | None) -> None:
        # A former server that may still send a heartbeat keeps its shard.
        known = self.members.known_of_role(membership_pb2.ROLE_PARAMETER_SERVER)
        if self.shards.refresh(known):
            self._journal.set_fact("shard_map", self.shards.map.SerializeToString())
            if self.shards.map.epoch > 1:
                # A restarted server may hold other rows than the run has used. The first map
                # precedes every run.
                self.rendezvous.close()
                self._save_generation()
        if now is not None:
            self.scaling.plan(self._servers(), now)

    def scale(
        self, request: reshard_pb2.ScaleParameterServersRequest, now: float
    ) -> reshard_pb2.Reshard:
        """Begin to change the number of parameter servers."""
        self.shard_map()
        return self.scaling.scale(request, self._servers(), now)

    def report_move(
        self, request: reshard_pb2.ReportMoveRequest, now: float
    ) -> reshard_pb2.Reshard:
        """Record a server's progress in a reshard; the trainers' generation does not end."""
        self.members.check(request.name, request.incarnation)
        return self.scaling.report(request, now)

    def join(self, request: rendezvous_pb2.JoinRoundRequest, now: float = 0.0) -> bool:
        """Add a trainer to the open generation; return whether that formed it."""
        member = self.members.check(request.name, request.incarnation)
        if member.role != membership_pb2.ROLE_TRAINER:
            raise NotMember(f"{request.name!r} is not a trainer", name=request.name)
        self.jobs.check(request.job)
        formed = self.rendezvous.join(
            request.name, request.incarnation, request.after_generation, now
        )
        self._save_generation()
        if formed:
            self._log_formed()
        return formed

    def _log_formed(self) -> None:
        extra = {"generation": self.rendezvous.current, "trainers": self.rendezvous.size}
        _log.info("generation formed", extra=extra)

    def rank_of(self, request: rendezvous_pb2.JoinRoundRequest) -> rendezvous_pb2.JoinRoundResponse:
        """Return generation, rank and world size of a trainer that joined."""
        generation, rank = self.rendezvous.rank_of(request.name, request.incarnation)
        return rendezvous_pb2.JoinRoundResponse(
            generation=generation, rank=rank, world_size=self.rendezvous.size
        )

    def put(self, request: rendezvous_pb2.PutKeyRequest, account: str = "") -> None:
        """Publish a value to the trainers of a generation."""
        self.rendezvous.put(request.generation, request.key, request.value, account)

    def create_table(self, spec: table_pb2.TableSpec, account: str = "") -> bool:
        """Add a table to the catalogue; return False if an equal one exists."""
        created = self.catalogue.is_new(spec, account)
        if created:
            self._journal.add_table(spec)
            self.catalogue.enter(spec, account)
            _log.info("table created", extra={"table": spec.name, "rows": spec.rows})
        return created

    def shard_map(self) -> table_pb2.ShardMap:
        """Return the current shard map."""
        return self.shards.current(self._servers())

    def take_shard(
        self, request: data_pb2.TakeShardRequest, account: str = ""
    ) -> data_pb2.TakeShardResponse:
        """Assign a shard of a data set."""
        self.members.check(request.name, request.incarnation)
        spec = DataSetSpec(request.samples, request.shard_samples, request.epochs)
        worker = (request.name, request.incarnation)
        try:
            found = self.data_sets.take(
                request.dataset, spec, worker, request.sequence, list(request.done), account
            )
        finally:
            # Finished shards are stored even if no other shard is free.
            self._save_data_set(request.dataset)
        if found is None:
            return data_pb2.TakeShardResponse(is_over=True)
        return data_pb2.TakeShardResponse(
            epoch=found.epoch, shard=found.shard, begin=found.begin, end=found.end
        )

    def _save_data_set(self, name: str) -> None:
        if known := self.data_sets.dump(name):
            self._journal.set_data_set(name, known)

    def set_data_position(self, dataset: str, position: Stored, account: str = "") -> None:
        """Set a data set to a saved position."""
        self.data_sets.restore(dataset, position, account)
        self._save_data_set(dataset)

    def report(self, request: status_pb2.ReportProgressRequest) -> None:
        """Store a trainer's progress."""
        self.members.check(request.name, request.incarnation)
        self.reports.report(request.name, request.progress)

    def finish(self, request: status_pb2.ReportResultRequest) -> None:
        """Store the result of a run, and that its job is done."""
        self.rendezvous.check(request.generation)
        figures = dict(request.figures)
        if request.job:
            self.jobs.finish(request.job, figures)
            self._journal.set_fact("jobs", self.jobs.dump())
        self._journal.set_fact("result", request.SerializeToString(deterministic=True))
        self.reports.finish(request.generation, figures)

    def request_checkpoint(self) -> int:
        """Ask the trainers for a checkpoint; return the number of the request."""
        if not self.rendezvous.formed:
            raise NotMember(
                "no generation is formed that could write a checkpoint; start the trainers"
            )
        return self.reports.request_checkpoint()

    def report_checkpoint(self, request: status_pb2.ReportCheckpointRequest, now: float) -> None:
        """Store a trainer's report about a checkpoint."""
        self.members.check(request.name, request.incarnation)
        self.reports.report_checkpoint(request.checkpoint, now)

    def status(
        self, now: float, page_token: str = "", page_size: int = 0
    ) -> status_pb2.GetStatusResponse:
        """Return the status of the whole cluster, with a page of its members."""
        response = status_pb2.GetStatusResponse(
            generation=self.rendezvous.current if self.rendezvous.formed else 0,
            shard_epoch=self.shards.map.epoch,
            tables=[spec.name for spec in self.catalogue.all()],
            result=self.reports.result,
            result_generation=self.reports.result_generation,
            checkpoint=self.reports.checkpoint(now),
            warnings=self._warnings(now),
        )
        leases, response.next_page_token = page_of(
            self.members.leases(),
            page_token,
            page_size,
            name=lambda lease: lease.member.name,
            order=order,
            size=_entry_bytes,
        )
        for lease in leases:
            entry = response.members.add(
                member=lease.member,
                silence_s=now - lease.seen_at,
                open_contexts=sum(lease.contexts.values()),
            )
            for (name, incarnation), count in sorted(lease.contexts.items()):
                if not count:
                    continue  # the opener holds something else, such as a snapshot
                opened = entry.contexts.add(count=count)
                opened.opener.name, opened.opener.incarnation = name, incarnation
            progress = self.reports.progress(lease.member.name)
            if progress is not None:
                entry.progress.CopyFrom(progress)
        return response

    def _warnings(self, now: float) -> list[str]:
        """Return what an operator should check."""
        found = [
            f"{lease.member.name} was silent for {now - lease.seen_at:.0f} of "
            f"{self.members.lease_s:g} s"
            for lease in self.members.leases()
            if now - lease.seen_at > self.members.lease_s / 2
        ]
        if len(found) > _MAX_WARNINGS:
            found[_MAX_WARNINGS:] = [f"{len(found) - _MAX_WARNINGS} more members were silent"]
        try:
            self.shard_map()
        except ShardNotReady as error:
            found.append(error.message)
        if self.rendezvous.world_size and not self.rendezvous.formed:
            found.append(
                f"{len(self.rendezvous.joined)} of {self.rendezvous.world_size} trainers have "
                f"joined generation {self.rendezvous.current}"
            )
        if under_way := self.scaling.describe():
            found.append(under_way)
        checkpoint = self.reports.checkpoint(now)
        if checkpoint is not None and checkpoint.error:
            found.append(f"the newest checkpoint failed: {checkpoint.error}")
        return found

    def check(self) -> None:
        """Check the invariants of docs/coordinator.md; for tests, after each event.

        Raises:
            AssertionError: An invariant is violated.
        """
        self.rendezvous.check_invariants()
        self.data_sets.check_invariants()
        leases = {lease.member.name: lease.member for lease in self.members.leases()}
        assert len(leases) == len(self.members.leases())
        for name, incarnation in self.rendezvous.joined.items():
            # A joined trainer that is not a member was one before the coordinator restarted.
            assert name not in leases or leases[name].incarnation == incarnation
        self.scaling.check_invariants()
        # State that other processes rely on is in the journal before it is sent.
        assert self._journal.fact("round") in (b"", self.rendezvous.dump())
        assert self._journal.tables() == self.catalogue.all()
        self.members.check_invariants()
        assert all(held == self.data_sets.dump(n) for n, held in self._journal.data_sets())
        assert self._journal.fact("jobs") == self.jobs.dump()
        assert self.reports.requests >= 0


def _entry_bytes(lease: MemberLease) -> int:
    """Return about how many bytes a member takes in a status."""
    return 2 * len(lease.member.name) + 600 + sum(len(name) + 32 for name, _ in lease.contexts)
