import threading

from prometheus_client import CollectorRegistry, generate_latest

from gradmesh.sdk.transport.metrics import RpcMetrics


def test_figures_are_shown_by_rpc_outcome_and_lane() -> None:
    registry = CollectorRegistry()
    metrics = RpcMetrics("server", registry)

    metrics.observe("/s/A", "OK", 0.002, 10, 20, "shm")
    metrics.observe("/s/A", "DRAINING", 0.2, 1, 2)

    value = registry.get_sample_value
    calls = "gradmesh_rpc_server_calls_total"
    assert value(calls, {"rpc": "/s/A", "status": "OK", "lane": "shm"}) == 1
    assert value(calls, {"rpc": "/s/A", "status": "DRAINING", "lane": "unary"}) == 1
    sent = {"rpc": "/s/A", "direction": "sent"}
    assert value("gradmesh_rpc_server_bytes_total", sent) == 11
    seconds = "gradmesh_rpc_server_seconds"
    assert value(f"{seconds}_bucket", {"rpc": "/s/A", "le": "0.003"}) == 1
    assert value(f"{seconds}_bucket", {"rpc": "/s/A", "le": "+Inf"}) == 2
    assert value(f"{seconds}_sum", {"rpc": "/s/A"}) == 0.202
    assert b"# TYPE gradmesh_rpc_server_seconds histogram" in generate_latest(registry)


def test_threads_lose_no_count() -> None:
    registry = CollectorRegistry()
    metrics = RpcMetrics("client", registry)

    def work() -> None:
        for _ in range(2000):
            metrics.observe("/s/A", "OK", 0.1, 1, 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    labels = {"rpc": "/s/A", "status": "OK", "lane": "unary"}
    assert registry.get_sample_value("gradmesh_rpc_client_calls_total", labels) == 8000
