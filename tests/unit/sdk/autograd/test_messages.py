"""The lineage of messages, as it is sent between workers."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import autograd_pb2, worker_pb2
from gradmesh.protos.errors import InvalidFrame, InvalidRequest, LimitExceeded, WorkerLost
from gradmesh.sdk.autograd.messages import Lineage


def noted(lineage, *message):
    into = autograd_pb2.Lineage()
    lineage.note(into, *message)
    return into


class Workers:
    """Several workers that send each other messages."""

    def __init__(self, *names):
        self.lineages = {name: Lineage(name, 1) for name in names}
        self.counts = {name: itertools.count(1) for name in names}

    def send(self, sender, receiver, *made_from):
        count = next(self.counts[sender])
        note = noted(self.lineages[sender], count, made_from, receiver)
        again = autograd_pb2.Lineage.FromString(note.SerializeToString())
        self.lineages[receiver].learn(again, sender)
        return (sender, count), note


def test_the_end_of_a_chain_receives_the_lineage():
    mesh = Workers("a", "b", "c")
    first, _ = mesh.send("a", "b")
    second, _ = mesh.send("b", "c", first)
    third, _ = mesh.send("c", "b", second)
    last, _ = mesh.send("b", "a", third)

    assert mesh.lineages["a"].sends_behind([last]) == {"a": [1], "b": [1, 2], "c": [1]}
    assert mesh.lineages["c"].sends_behind([second]) == {"a": [1], "b": [1]}


def test_the_lineage_excludes_unused_messages():
    mesh = Workers("a", "b", "c")
    used, _ = mesh.send("b", "a")
    mesh.send("c", "a")

    assert mesh.lineages["a"].sends_behind([used]) == {"b": [1]}
    assert mesh.lineages["a"].sends_behind([]) == {}


def test_lineage_costs_a_few_bytes_per_message():
    mesh = Workers("a", "b")
    behind, sizes = (), []
    for _ in range(200):
        request, there = mesh.send("a", "b", *behind)
        reply, back = mesh.send("b", "a", request)
        behind = (reply,)
        sizes += [len(there.messages), len(back.messages)]

    assert max(sizes) == 5
    assert len(mesh.lineages["a"].sends_behind(behind)["a"]) == 200


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_worker_has_the_lineage_of_the_messages_it_received(data):
    names = ["a", "b", "c", "d"]
    mesh = Workers(*names)
    truth, reached = {}, {name: [] for name in names}

    def behind(message):
        found, stack = {message}, [message]
        while stack:
            for parent in truth[stack.pop()]:
                if parent not in found:
                    found.add(parent)
                    stack.append(parent)
        return found

    for _ in range(data.draw(st.integers(1, 25))):
        sender, receiver = data.draw(st.tuples(st.sampled_from(names), st.sampled_from(names)))
        known = reached[sender]
        made_from = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
        message, _ = mesh.send(sender, receiver, *made_from)
        truth[message] = made_from
        reached[receiver].append(message)
        sends = mesh.lineages[receiver].sends_behind([message])
        assert {(n, c) for n, counts in sends.items() for c in counts} == behind(message)


def test_a_restarted_worker_is_detected():
    lineage = Lineage("a", 1)
    lineage.learn(noted(Lineage("b", 5), 1, [], "a"), "b")

    with pytest.raises(WorkerLost, match="b has restarted"):
        lineage.learn(noted(Lineage("b", 6), 1, [], "a"), "b")


@pytest.mark.parametrize("messages", [[0], [0, 1], [0, 1, 9], [4, 1, 0], [0, 1, 1, 7, 1]])
def test_invalid_lineages_are_refused(messages):
    wrong = autograd_pb2.Lineage(
        workers=[worker_pb2.WorkerId(name="b", incarnation=1)], messages=messages
    )

    with pytest.raises(InvalidFrame):
        Lineage("a", 1).learn(wrong, "b")


def test_a_lineage_of_another_caller_is_refused():
    note = noted(Lineage("b", 1), 1, [], "a")

    with pytest.raises(InvalidFrame, match="from 'c'"):
        Lineage("a", 1).learn(note, "c")
    with pytest.raises(InvalidFrame):
        Lineage("a", 1).learn(autograd_pb2.Lineage(), "b")


def test_the_size_of_a_context_is_bounded(monkeypatch):
    monkeypatch.setattr(limits, "MAX_LINEAGE", 10)
    mesh = Workers("a", "b")
    for _ in range(10):
        mesh.send("a", "b")

    with pytest.raises(InvalidRequest, match="open a new context"):
        mesh.send("a", "b")


def test_an_undescribed_message_is_named():
    with pytest.raises(InvalidFrame, match="message 3 of b"):
        Lineage("a", 1).sends_behind([("b", 3)])


def test_a_lineage_has_a_bounded_number_of_links_and_workers(monkeypatch):
    links = limits.LINEAGE_LINKS._replace(total=100)
    monkeypatch.setattr(limits, "LINEAGE_LINKS", links)
    monkeypatch.setattr(limits, "WORKERS_OF_CONTEXT", limits.WORKERS_OF_CONTEXT._replace(total=5))
    lineage = Lineage("me", 1)
    sender = worker_pb2.WorkerId(name="a", incarnation=1)
    # One message that claims many ancestors: few entries, many links.
    wide = [0, 1, 40, *itertools.chain.from_iterable((0, n) for n in range(40))]
    lineage.learn(autograd_pb2.Lineage(workers=[sender], messages=wide), "a")

    with pytest.raises(LimitExceeded, match="links between messages"):
        lineage.learn(autograd_pb2.Lineage(workers=[sender], messages=wide), "a")
    others = [worker_pb2.WorkerId(name=f"w-{n}", incarnation=1) for n in range(5)]
    with pytest.raises(LimitExceeded, match="workers of a context"):
        lineage.learn(autograd_pb2.Lineage(workers=[sender, *others]), "a")
    long = worker_pb2.WorkerId(name="x" * 300, incarnation=1)
    with pytest.raises(LimitExceeded, match="name of a worker"):
        lineage.learn(autograd_pb2.Lineage(workers=[long]), "x" * 300)

    assert len(lineage) == 1
