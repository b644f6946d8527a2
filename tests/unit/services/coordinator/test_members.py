import pytest

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import membership_pb2
from gradmesh.protos.errors import InvalidRequest, LimitExceeded, NameTaken, NotMember
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.members import Members


def test_the_same_process_may_register_twice(say):
    members = Members(10, Journal(None))

    assert members.register(say.member("client-0"), False, 0) is None
    assert members.register(say.member("client-0"), False, 5) is None

    assert members.expire(14) == []


def test_a_live_name_is_taken(say):
    members = Members(10, Journal(None))
    members.register(say.member("client-0", 1, "here:1"), False, 0)

    with pytest.raises(NameTaken, match=r"at here:1; .*wait 6 s") as caught:
        members.register(say.member("client-0", 2), False, 4)

    assert caught.value.metadata["expires_in_s"] == "6.0"
    assert members.check("client-0", 1).incarnation == 1


def test_a_newer_incarnation_replaces_on_request_or_after_the_lease(say):
    members = Members(10, Journal(None))
    members.register(say.member("client-0", 1), False, 0)

    former = members.register(say.member("client-0", 2), True, 1)
    late = members.register(say.member("client-0", 3), False, 12)

    assert (former.incarnation, late.incarnation) == (1, 2)


@pytest.mark.parametrize("replace", [True, False])
def test_a_process_never_replaces_a_newer_one(say, replace):
    members = Members(10, Journal(None))
    members.register(say.member("client-0", 5), False, 0)

    with pytest.raises(NameTaken):
        members.register(say.member("client-0", 4), replace, 100)


@pytest.mark.parametrize("replace", [True, False])
def test_two_processes_of_one_incarnation_are_two(say, replace):
    members = Members(10, Journal(None))
    members.register(say.member("ps-0", 1, "here:1"), False, 0)

    with pytest.raises(NameTaken):
        members.register(say.member("ps-0", 1, "there:1"), replace, 0)


def test_a_silent_member_is_lost_and_a_renewed_one_is_not(say):
    members = Members(10, Journal(None))
    members.register(say.member("client-0"), False, 0)
    members.register(say.member("client-1"), False, 0)
    members.renew("client-1", 1, 8)

    gone = members.expire(10.5)

    assert [member.name for member in gone] == ["client-0"]
    with pytest.raises(NotMember, match=r"'client-0' .*register again"):
        members.renew("client-0", 1, 11)


def test_calls_of_former_incarnations_are_refused(say):
    members = Members(10, Journal(None))
    members.register(say.member("client-0", 1), False, 0)
    members.register(say.member("client-0", 2), True, 0)

    with pytest.raises(NotMember):
        members.renew("client-0", 1, 1)
    assert members.leave("client-0", 1) is None
    assert members.leave("client-0", 2) is not None
    assert members.leave("client-0", 2) is None


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("name", "is not a name for a worker"),
        ("role", "no role"),
        ("address", "no address"),
        ("incarnation", "no inc"),
    ],
)
def test_a_member_must_have_name_role_address_and_incarnation(say, field, message):
    member = say.member("ps-0")
    member.ClearField(field)

    with pytest.raises(InvalidRequest, match=message):
        Members(10, Journal(None)).register(member, False, 0)


def test_members_are_in_natural_order(say):
    members = Members(10, Journal(None))
    for name in ("ps-10", "ps-2", "client-0", "ps-1"):
        members.register(say.member(name), False, 0)

    servers = members.of_role(membership_pb2.ROLE_PARAMETER_SERVER)

    assert [member.name for member in servers] == ["ps-1", "ps-2", "ps-10"]


def test_a_former_member_is_reported_as_gone(say):
    members = Members(10, Journal(None))
    for number in range(4):
        members.register(say.member(f"client-{number}"), False, 0)

    members.renew("client-1", 1, 8, {("w", 3): 5})
    members.leave("client-2", 1)
    members.register(say.member("client-3", 2), True, 1)
    members.expire(11)

    assert [members.is_gone(f"client-{n}", 1) for n in range(4)] == [True, False, True, True]
    assert not members.is_gone("client-3", 2)
    assert not members.is_gone("never-here", 1)
    assert [held.contexts for held in members.leases()] == [{("w", 3): 5}, {}]


def test_an_older_process_does_not_get_a_name_back(say):
    members = Members(10, Journal(None))
    members.register(say.member("client-0", 2), False, 0)
    members.leave("client-0", 2)

    with pytest.raises(NameTaken, match="held by a newer process"):
        members.register(say.member("client-0", 1), True, 1)

    assert members.leases() == []


def test_a_restarted_coordinator_restores_its_members(say):
    journal = Journal(None)
    members = Members(10, journal)
    for number in range(3):
        members.register(say.member(f"client-{number}"), False, 0)
    members.leave("client-1", 1)

    again = Members(10, journal)
    again.expire(50)
    came_back = again.renew("client-0", 1, 51)

    assert came_back
    assert not again.renew("client-0", 1, 52)
    assert [held.member.name for held in again.leases()] == ["client-0"]
    assert again.is_gone("client-1", 1)
    assert not again.is_gone("client-2", 1)
    assert [member.name for member in again.expire(61)] == ["client-2"]
    assert again.is_gone("client-2", 1)


def test_names_are_kept_for_members_of_a_former_coordinator(say):
    journal = Journal(None)
    Members(10, journal).register(say.member("client-0", 2), False, 0)
    again = Members(10, journal)
    again.expire(50)

    with pytest.raises(NameTaken) as taken:
        again.register(say.member("client-0", 3), False, 54)
    again.register(say.member("client-0", 3), True, 54)

    assert taken.value.metadata["expires_in_s"] == "6.0"
    assert again.is_gone("client-0", 2)


def test_the_journal_drops_the_oldest_tombstones(say, monkeypatch):
    monkeypatch.setattr("gradmesh.services.coordinator.members._MAX_GONE", 2)
    journal = Journal(None)
    members = Members(10, journal)
    for number in range(4):
        members.register(say.member(f"client-{number}"), False, 0)
        members.leave(f"client-{number}", 1)

    kept = [(name, known.member, known.gone.incarnation) for name, known in journal.members()]
    assert kept == [("client-2", None, 1), ("client-3", None, 1)]


def test_clients_that_come_and_go_do_not_drop_the_tombstones_of_servers(say, monkeypatch):
    members = Members(10, Journal(None))
    monkeypatch.setattr("gradmesh.services.coordinator.members._MAX_GONE", 2)
    members.register(say.member("ps-0"), False, 0)
    members.leave("ps-0", 1)
    for number in range(5):
        members.register(say.member(f"client-{number}"), False, 0)
        members.leave(f"client-{number}", 1)

    assert members.is_gone("ps-0", 1)
    assert not members.is_gone("client-2", 1)
    assert members.is_gone("client-4", 1)
    members.check_invariants()


def test_each_role_has_places_of_its_own(say, monkeypatch):
    members = Members(10, Journal(None))
    monkeypatch.setattr(limits, "MEMBERS", limits.MEMBERS._replace(total=2))
    for number in range(2):
        members.register(say.member(f"client-{number}"), False, 0)

    with pytest.raises(LimitExceeded, match="members of one role: 2 are kept"):
        members.register(say.member("client-2"), False, 0)
    members.register(say.member("client-1", 2), True, 0)
    members.register(say.member("ps-0"), False, 0)
    members.leave("client-0", 1)
    members.register(say.member("client-2"), False, 0)
    members.check_invariants()
