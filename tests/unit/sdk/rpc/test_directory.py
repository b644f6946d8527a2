"""Which processes a worker has seen as members."""

import pytest

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import membership_pb2, status_pb2
from gradmesh.sdk.rpc.directory import WorkerDirectory
from gradmesh.sdk.rpc.ids import WorkerId
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline


class Listing:
    """A coordinator with members that the test sets."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def get_status(self, deadline: Deadline) -> status_pb2.GetStatusResponse:
        status = status_pb2.GetStatusResponse()
        for rank, name in enumerate(self.names):
            member = membership_pb2.Member(name=name, incarnation=1, rank=rank, address="h:1")
            status.members.add(member=member)
        return status


def test_members_seen_are_bounded_and_those_of_now_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DEDUPE_WORKERS", 5)
    listing, directory = Listing(), WorkerDirectory(Channel)
    directory.join(listing)
    for number in range(20):
        listing.names = ["stays", f"client-{number}"]
        members = directory.refresh(Deadline.after(20))

    assert len(directory._once) == 5
    assert directory.was_member(WorkerId("stays", 1))
    assert not directory.is_lost(WorkerId("stays", 1), members)
    assert directory.is_lost(WorkerId("client-18", 1), members)
    assert not directory.was_member(WorkerId("client-3", 1))
    assert directory.was_member(WorkerId("client-19", 0))
    assert directory.was_there(1)
    assert not directory.was_there(2)
