import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client import Counter

from gradmesh.sdk.process.metrics import MetricsConfig, MetricsEndpoint, new_registry
from gradmesh.sdk.process.setting import AddressInUse


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=120) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_of_the_registry_are_served() -> None:
    registry = new_registry()
    Counter("cakes", "Cakes baked.", registry=registry).inc(3)

    with MetricsEndpoint("127.0.0.1:0", registry, lambda: True) as endpoint:
        status, body = get(endpoint.address, "/metrics")

    assert status == 200
    assert "cakes_total 3.0" in body
    assert "process_resident_memory_bytes" in body


def test_health_follows_the_process() -> None:
    healthy = [True]

    with MetricsEndpoint("127.0.0.1:0", new_registry(), lambda: healthy[0]) as endpoint:
        before = get(endpoint.address, "/healthz")
        healthy[0] = False
        after = get(endpoint.address, "/healthz")
        other = get(endpoint.address, "/")

    assert (before, after) == ((200, "ok\n"), (503, "draining\n"))
    assert other[0] == 404


def test_readiness_comes_after_health_and_ends_with_it() -> None:
    healthy, ready = [True], [False]
    answers = []

    with MetricsEndpoint(
        "127.0.0.1:0", new_registry(), lambda: healthy[0], lambda: ready[0]
    ) as endpoint:
        answers.append((get(endpoint.address, "/healthz"), get(endpoint.address, "/readyz")))
        ready[0] = True
        answers.append(get(endpoint.address, "/readyz"))
        healthy[0] = False
        answers.append(get(endpoint.address, "/readyz"))

    assert answers[0] == ((200, "ok\n"), (503, "starting\n"))
    assert answers[1:] == [(200, "ok\n"), (503, "draining\n")]


def test_port_is_free_after_close() -> None:
    endpoint = MetricsEndpoint("127.0.0.1:0", new_registry(), lambda: True)
    endpoint.close()
    endpoint.close()

    with MetricsEndpoint(endpoint.address, new_registry(), lambda: True) as again:
        assert get(again.address, "/healthz")[0] == 200


def test_address_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"

        with pytest.raises(AddressInUse, match=f"{address}.*already in use.*metrics.listen"):
            MetricsEndpoint(address, new_registry(), lambda: True)


def test_metrics_are_off_unless_asked_for() -> None:
    assert MetricsConfig().listen == "off"


def test_health_asks_the_server_and_readiness_does_not() -> None:
    answering = [True]

    with MetricsEndpoint(
        "127.0.0.1:0", new_registry(), lambda: True, answers=lambda: answering[0]
    ) as endpoint:
        before = get(endpoint.address, "/healthz")
        answering[0] = False
        after = get(endpoint.address, "/healthz"), get(endpoint.address, "/readyz")

    assert before == (200, "ok\n")
    assert after == ((503, "calls are not answered\n"), (200, "ok\n"))
