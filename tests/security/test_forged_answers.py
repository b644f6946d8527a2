"""Replies and references count only from the worker that they belong to."""

import threading

import pytest

import gradmesh as gm
from gradmesh.protos.common.v1 import context_pb2, value_pb2, worker_pb2
from gradmesh.protos.common.v1.autograd_pb2 import AutogradNote
from gradmesh.protos.errors import ContextReleased, Forbidden
from gradmesh.protos.frame import Frame
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.protos.ticket import TICKET_METADATA
from gradmesh.sdk.autograd.participant import ContextRecorder
from gradmesh.sdk.autograd.registry import ContextRegistry
from gradmesh.sdk.process.network import TransportConfig
from gradmesh.sdk.rpc.builtin import BACKWARD, GATHER
from gradmesh.sdk.rpc.ids import GlobalId
from tests.security.roles import call_raw, role_files

RELEASE = threading.Event()


@gm.rpc.register(name="tests.security.slow")
def slow(value: int) -> int:
    RELEASE.wait(120)
    return value


@gm.rpc.register(name="tests.security.list")
def make_list(*values: int) -> list[int]:
    return list(values)


@pytest.fixture
def roles(tmp_path):
    return role_files(tmp_path)


@pytest.fixture
def cluster(make_cluster, roles):
    RELEASE.clear()
    yield make_cluster(start_servers=False, security=roles["worker"])
    RELEASE.set()


@pytest.fixture
def start(cluster, roles):
    """Start a worker; all of them end with the test."""
    nodes = []

    def begin(name):
        node = gm.rpc.init(
            name,
            coordinator=cluster.address,
            security=roles["worker"],
            # So that a slow call leaves the thread that received it, and its reply is deferred.
            limits=gm.Limits(threads=2),
            transport=TransportConfig(lane="unary"),
            install=False,
        )
        nodes.append(node)
        return node

    yield begin
    RELEASE.set()
    for node in nodes:
        node.leave(1.0)


def ask(thief, victim, rpc, request):
    """Call a worker with the ticket of another."""
    coordinator = thief.mesh.connection.coordinator
    ((ticket, _),) = coordinator.issue_tickets([victim.name], thief.mesh.connection.deadline())
    return call_raw(victim.server.address, rpc, request, ((TICKET_METADATA, ticket),))


def reply(caller, call_id, worker):
    """Return a reply of 666."""
    message = pb.DeliverRequest(
        caller=caller.agent.me.proto(),
        call_id=call_id,
        worker=worker.agent.me.proto(),
        result=value_pb2.Value(int_value=666),
    )
    return Frame(message, [])


def test_only_the_worker_that_was_called_may_reply(start, eventually):
    caller, called, thief = start("caller"), start("called"), start("thief")
    calls = [
        caller.agent.caller.call("called", "tests.security.slow", (number,), {}, 30.0)
        for number in range(3)
    ]
    outstanding = caller.agent.outstanding
    eventually(lambda: len(called.agent.deferred) >= 1)
    known = list(outstanding._calls)

    for call_id in (*range(20), *known):
        # In its own name it is not the worker that was called.
        assert not ask(thief, caller, "Deliver", reply(caller, call_id, thief)).wanted
        with pytest.raises(Forbidden, match="may not act for 'called'"):
            ask(thief, caller, "Deliver", reply(caller, call_id, called))
    RELEASE.set()

    assert [call.wait() for call in calls] == [0, 1, 2]
    assert min(known) > 2**32
    assert len(set(known)) == 3


def test_no_worker_asks_about_the_calls_of_another_or_calls_in_its_name(start):
    victim, thief = start("victim"), start("thief")
    of_victim = victim.agent.me.proto()
    requests = {
        "CheckCalls": pb.CheckCallsRequest(caller=of_victim, call_ids=[1]),
        "Call": Frame(pb.CallRequest(function="tests.security.list", caller=of_victim), []),
    }

    for rpc, request in requests.items():
        with pytest.raises(Forbidden, match="may not act for 'victim'"):
            ask(thief, victim, rpc, request)


def test_a_reference_is_its_holders(start, eventually):
    owner, holder, thief = start("owner"), start("holder"), start("thief")
    rref = holder.agent.caller.create("owner", "tests.security.list", (1, 2), {}, 20.0)
    assert rref.to_here(20.0) == [1, 2]
    proto = rref._usable().proto()
    stranger = pb.ForkRefRequest(ref=proto, caller=holder.agent.me.proto())
    created = Frame(pb.CreateRefRequest(ref=proto, function="tests.security.list"), [])

    with pytest.raises(Forbidden, match="'holder' holds"):
        ask(thief, owner, "DeleteRef", pb.DeleteRefRequest(ref=proto))
    with pytest.raises(Forbidden):
        ask(thief, owner, "ForkRef", stranger)
    with pytest.raises(Forbidden):
        ask(thief, owner, "CreateRef", created)
    # The thief registers the holder's reference as its own, and deletes that.
    mine = pb.ForkRefRequest(ref=proto, caller=thief.agent.me.proto())
    ask(thief, owner, "ForkRef", mine)
    ask(thief, owner, "DeleteRef", pb.DeleteRefRequest(ref=proto))

    assert rref.to_here(20.0) == [1, 2]
    del rref
    eventually(lambda: not len(owner.agent.rrefs.owners))


def test_a_deletion_before_the_creation_counts_for_the_holder_only(start):
    owner, holder, thief = start("owner"), start("holder"), start("thief")
    following = holder.agent.rrefs.keys.new().counter + 1
    ref = value_pb2.RemoteRef(
        owner="owner",
        owner_incarnation=owner.agent.incarnation,
        creator="holder",
        incarnation=holder.agent.incarnation,
        counter=following,
    )
    guesses = [value_pb2.RemoteRef() for _ in range(3)]
    for more, guess in enumerate(guesses):
        guess.CopyFrom(ref)
        guess.counter = following + more

    ask(thief, owner, "DeleteRef", pb.DeleteRefRequest(ref=guesses[0], more=guesses[1:]))

    rref = holder.agent.caller.create("owner", "tests.security.list", (3,), {}, 20.0)
    assert rref.to_here(20.0) == [3]


def test_only_its_receiver_accepts_a_reference_that_was_passed_on(start):
    owner, parent, thief = start("owner"), start("parent"), start("thief")
    rref = parent.agent.caller.create("owner", "tests.security.list", (1,), {}, 20.0)
    users = parent.agent.rrefs.users
    fork = users.hold(rref, "child")
    request = pb.AcceptForkRequest(
        fork=value_pb2.ForkId(
            worker=worker_pb2.WorkerId(name=fork.worker, incarnation=fork.incarnation),
            counter=fork.counter,
        )
    )

    for sender in (thief, owner):
        with pytest.raises(Forbidden, match="passed to 'child'"):
            ask(sender, parent, "AcceptFork", request)

    assert GlobalId(*fork) in users._holds
    users.release(fork)


def call_as(thief, victim, function, *args):
    """Call a function of a worker through rpc, as another."""
    return thief.agent.caller.call(victim.name, function, args, {}, 10.0).wait()


def test_no_worker_arrives_at_a_gather_in_the_name_of_another(start):
    victim, thief = start("a-victim"), start("thief")
    names = ["a-victim", "thief"]

    with pytest.raises(Forbidden, match="may not act for 'a-victim'"):
        call_as(thief, victim, GATHER, names, 1, "a-victim", 666, 5.0)

    assert victim.agent.collectives.waiting() == 0


def test_no_backward_runs_in_the_context_of_a_process_that_never_was(start):
    victim, thief = start("victim"), start("thief")
    rref = thief.agent.caller.create("victim", "tests.security.list", (), {}, 20.0)

    with pytest.raises(Forbidden, match="no process 'victim' of incarnation"):
        call_as(thief, victim, BACKWARD, rref, ["victim", 2**63 - 1, 1], False)


def test_a_note_of_a_context_of_nobody_is_refused(start):
    victim, thief = start("victim"), start("thief")
    context = context_pb2.ContextId(worker="victim", incarnation=2**63, counter=1)
    message = pb.CallRequest(function="tests.security.list", caller=thief.agent.me.proto())
    message.autograd.context.CopyFrom(context)

    with pytest.raises(Forbidden, match="no process 'victim' of incarnation"):
        ask(thief, victim, "Call", Frame(message, []))


def test_a_reply_opens_and_ends_no_context():
    contexts = ContextRegistry()
    contexts.get_or_create(context_pb2.ContextId(worker="trainer", incarnation=5, counter=1))
    invented = context_pb2.ContextId(worker="trainer", incarnation=2**64 - 1, counter=1)

    with pytest.raises(ContextReleased):
        ContextRecorder(contexts).incoming(AutogradNote(context=invented), [], "thief")

    assert contexts.openers() == {("trainer", 5): 1}
