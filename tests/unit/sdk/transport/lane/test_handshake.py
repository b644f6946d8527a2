from typing import Any

from gradmesh.sdk.transport.call import UNRESTRICTED, Caller
from gradmesh.sdk.transport.lane import handshake as module
from gradmesh.sdk.transport.lane.handshake import LaneSecrets


def test_a_secret_is_accepted_once() -> None:
    offers = LaneSecrets()
    reader = Caller("reader")
    secret = offers.make(reader)
    assert secret is not None

    assert offers.take(bytes(32)) is None
    assert offers.take(secret) is reader
    assert offers.take(secret) is None


def test_a_secret_expires(monkeypatch: Any) -> None:
    offers = LaneSecrets()
    now = module.time.monotonic()
    secret = offers.make(UNRESTRICTED)
    assert secret is not None

    monkeypatch.setattr(module.time, "monotonic", lambda: now + 60)

    assert not offers.take(secret)


def test_secrets_are_bounded() -> None:
    offers = LaneSecrets()
    made = [offers.make(UNRESTRICTED) for _ in range(300)]

    assert made.count(None) == 300 - 256
