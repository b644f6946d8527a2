from typing import Any

from gradmesh.sdk.transport.lane import offers as module
from gradmesh.sdk.transport.lane.offers import Offers


def test_a_secret_is_good_once() -> None:
    offers = Offers()
    secret = offers.make()
    assert secret is not None

    assert not offers.take(bytes(32))
    assert offers.take(secret)
    assert not offers.take(secret)


def test_a_secret_runs_out(monkeypatch: Any) -> None:
    offers = Offers()
    now = module.time.monotonic()
    secret = offers.make()
    assert secret is not None

    monkeypatch.setattr(module.time, "monotonic", lambda: now + 60)

    assert not offers.take(secret)


def test_secrets_are_bounded() -> None:
    offers = Offers()
    made = [offers.make() for _ in range(300)]

    assert made.count(None) == 300 - 256
