import sqlite3

import pytest

from gradmesh.protos.common.v1 import worker_pb2
from gradmesh.protos.errors import Forbidden, InvalidRequest, NameTaken, NotMember
from gradmesh.protos.limits import MAX_TICKETS
from gradmesh.protos.ticket import verify
from gradmesh.sdk.transport.call import UNRESTRICTED, Caller
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.members import Members
from gradmesh.services.coordinator.sessions import Sessions

MINE, OTHER = b"m" * 32, b"o" * 32
NOW_MS = 1_000_000


@pytest.fixture
def journal(tmp_path):
    with_file = Journal(tmp_path)
    yield with_file
    with_file.close()


@pytest.fixture
def members(journal, say):
    members = Members(10, journal)
    members.register(say.member("ps-0", 7), False, 0, session=MINE)
    members.register(say.member("client-0", 8), False, 0, session=OTHER)
    return members


def caller(session, role="admin"):
    return Caller(role, session=session)


def test_a_ticket_names_the_member_of_the_session(members):
    issued = Sessions(members).issue(["ps-0", "nobody"], caller(OTHER, "client"), NOW_MS).tickets

    ticket = verify(issued[0].data, MINE, ("ps-0", 7), NOW_MS)
    assert (ticket.role, ticket.caller, ticket.member_role) == ("client", ("client-0", 8), "client")
    assert ticket.expires_ms == NOW_MS + issued[0].ttl_s * 1000
    assert issued[1].data == b""


def test_a_ticket_of_a_caller_without_a_session_names_no_member(members):
    issued = Sessions(members).issue(["ps-0"], caller(b"", "reader"), NOW_MS).tickets

    ticket = verify(issued[0].data, MINE, ("ps-0", 7), NOW_MS)
    assert (ticket.role, ticket.caller, ticket.member_role) == ("reader", ("", 0), "")


def test_an_unknown_session_gets_no_ticket(members):
    with pytest.raises(NotMember, match="register again"):
        Sessions(members).issue(["ps-0"], caller(b"x" * 32), NOW_MS)


def test_requests_are_bounded(members):
    sessions = Sessions(members)

    with pytest.raises(InvalidRequest, match="at most 256"):
        sessions.issue(["ps-0"] * (MAX_TICKETS + 1), caller(b""), NOW_MS)
    with pytest.raises(InvalidRequest, match="at most 256"):
        sessions.registered([worker_pb2.WorkerId()] * (MAX_TICKETS + 1))


def test_members_and_former_members_are_registered(members):
    members.leave("client-0", 8)
    asked = [("ps-0", 7), ("ps-0", 8), ("ps-0", 6), ("client-0", 8), ("client-0", 9), ("x", 1)]

    found = Sessions(members).registered(
        [worker_pb2.WorkerId(name=name, incarnation=number) for name, number in asked]
    )

    assert found == [True, False, False, True, False, False]


def test_a_member_is_bound_to_its_session(members):
    sessions = Sessions(members)

    sessions.check_own("ps-0", 7, caller(MINE))
    sessions.check_own("ps-0", 7, UNRESTRICTED)
    sessions.check_own("ps-0", 9, caller(OTHER))  # the machine answers that it is not a member
    sessions.check_own("nobody", 1, caller(OTHER))
    for session in (OTHER, b"", MINE[:-1]):
        with pytest.raises(Forbidden, match="may not act for 'ps-0'"):
            sessions.check_own("ps-0", 7, caller(session))


def test_a_restarted_coordinator_keeps_sessions(members, journal, say):
    members.leave("client-0", 8)

    again = Members(10, journal)

    Sessions(again).check_own("ps-0", 7, caller(MINE))
    assert again.find_session(MINE).member == say.member("ps-0", 7)
    with pytest.raises(NameTaken):
        again.register(say.member("client-0", 8), True, 0, session=b"x" * 32)
    again.register(say.member("client-0", 8), True, 0, session=OTHER)
    again.check_invariants()


def test_a_session_has_one_name(members, say):
    with pytest.raises(InvalidRequest, match="session key of another member"):
        members.register(say.member("client-1"), False, 0, session=MINE)


def test_a_member_of_a_version_without_sessions_registers_again(members, journal, say):
    members.register(say.member("ps-1", 7), False, 0)
    sessions = Sessions(members)

    with pytest.raises(NotMember, match="register again"):
        sessions.check_own("ps-1", 7, caller(b"n" * 32))
    members.register(say.member("ps-1", 7), False, 0, session=b"n" * 32)

    sessions.check_own("ps-1", 7, caller(b"n" * 32))
    Sessions(Members(10, journal)).check_own("ps-1", 7, caller(b"n" * 32))


def test_a_file_of_a_version_without_sessions_is_read(tmp_path, say):
    old = sqlite3.connect(tmp_path / "coordinator.sqlite")
    old.execute("CREATE TABLE members (name TEXT PRIMARY KEY, member BLOB, gone TEXT)")
    member = say.member("ps-0", 7).SerializeToString()
    old.execute("INSERT INTO members VALUES ('ps-0', ?, '6'), ('client-0', x'', '3')", (member,))
    old.commit()
    old.close()

    journal = Journal(tmp_path)
    members = Members(10, journal)

    assert members.find("ps-0").member == say.member("ps-0", 7)
    assert members.is_gone("client-0", 3)
    assert members.role_of("client-0") is None
    members.check_invariants()
    journal.close()


@pytest.mark.parametrize(
    ("holder", "newcomer", "is_taken"),
    [("ps-0", "client", True), ("ps-0", "ps", False), ("client-0", "ps", False)],
)
def test_a_live_name_yields_to_its_role_or_from_a_client(members, say, holder, newcomer, is_taken):
    taker = say.member(holder, 99)
    taker.role = say.member(f"{newcomer}-0").role

    if is_taken:
        with pytest.raises(NameTaken):
            members.register(taker, True, 1, session=b"t" * 32)
    else:
        assert members.register(taker, True, 1, session=b"t" * 32) is not None
    members.check_invariants()
