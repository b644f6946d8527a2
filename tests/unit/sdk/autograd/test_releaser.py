"""Releasing contexts on other workers in the background."""

import threading
from itertools import chain

import pytest

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import Unreachable, WorkerNotFound
from gradmesh.sdk.autograd import releaser as module
from gradmesh.sdk.autograd.releaser import Releaser


class Peer:
    """A worker that can be reached after some failures."""

    def __init__(self, failures=0):
        self.failures = failures
        self.released = []
        self.changed = threading.Condition()
        self.name, self.incarnation = "me", 1

    def channel(self, worker, deadline):
        return self

    def call(self, method, request, deadline):
        with self.changed:
            if self.failures:
                self.failures -= 1
                raise Unreachable("no listener")
            self.released.append([id_.counter for id_ in (request.context, *request.others)])
            self.changed.notify_all()

    def wait_for(self, count):
        with self.changed:
            done = self.changed.wait_for(lambda: sum(map(len, self.released)) >= count, 10)
        assert done, self.released


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)


def context_id(counter):
    return context_pb2.ContextId(worker="w", incarnation=1, counter=counter)


def test_releases_are_sent_in_batches():
    peer = Peer()
    releaser = Releaser(peer)

    for counter in range(100):
        releaser.put(context_id(counter), ["x"])
    peer.wait_for(100)
    releaser.close(5)

    assert sorted(chain.from_iterable(peer.released)) == list(range(100))
    assert len(peer.released) < 50


def test_a_failed_release_is_sent_again():
    peer = Peer(failures=3)
    releaser = Releaser(peer)

    releaser.put(context_id(1), ["x"])
    releaser.put(context_id(2), ["x"])
    peer.wait_for(2)
    releaser.close(5)

    assert sorted(chain.from_iterable(peer.released)) == [1, 2]


@pytest.mark.slow
def test_a_worker_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(module, "_ATTEMPTS", 2)
    peer = Peer(failures=2)
    releaser = Releaser(peer)

    releaser.put(context_id(1), ["x"])
    with peer.changed:
        peer.changed.wait_for(lambda: peer.failures == 0, 10)
    releaser.put(context_id(2), ["x"])
    peer.wait_for(1)
    releaser.close(5)

    assert peer.released[-1][-1] == 2


def test_closing_reports_outstanding_calls_and_refuses_new_ones():
    peer = Peer()
    releaser = Releaser(peer)

    releaser.put(context_id(1), ["x"])
    releaser.close(5)
    releaser.put(context_id(2), ["x"])
    releaser.close(5)

    assert peer.released == [[1]]


def test_releases_for_a_name_that_is_not_a_member_are_dropped(eventually):
    asked = []

    class Nowhere(Peer):
        def channel(self, worker, deadline):
            asked.append(worker)
            raise WorkerNotFound(f"no worker {worker}")

    releaser = Releaser(Nowhere())
    releaser.put(context_id(1), ["invented"])
    eventually(lambda: asked)
    eventually(lambda: not releaser._backlogs)
    releaser.put(context_id(2), ["other"])
    eventually(lambda: "other" in asked)
    releaser.close(5)

    assert asked == ["invented", "other"]
