import threading

from gradmesh.protos.errors import Overloaded
from gradmesh.sdk.rpc.senders import Senders


def start(task):
    threading.Thread(target=task, daemon=True).start()


def test_a_receiver_that_cannot_be_reached_holds_a_few_threads_only(eventually):
    begun, reached, other = [], threading.Event(), threading.Event()

    def send():
        begun.append(1)
        reached.wait(120)

    senders = Senders(start)
    for _ in range(200):
        senders.send("lost", send)
    senders.send("other", other.set)

    assert other.wait(120)
    assert len(begun) <= 16
    reached.set()
    eventually(lambda: len(begun) == 200)
    eventually(lambda: not senders._sending and not senders._waiting)


def test_a_message_that_fails_does_not_stop_the_next(caplog):
    sent = []
    senders = Senders(lambda task: task())

    senders.send("a", lambda: 1 / 0)
    senders.send("a", lambda: sent.append(1))

    assert sent == [1]
    assert "a message was not sent" in caplog.text


def test_without_a_free_thread_the_sender_sends():
    sent = []

    def full(task):
        raise Overloaded("full")

    Senders(full).send("a", lambda: sent.append(1))

    assert sent == [1]
