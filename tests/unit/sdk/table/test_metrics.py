from prometheus_client import CollectorRegistry, generate_latest

from gradmesh.sdk.table.metrics import TableMetrics


def test_figures_add_up_and_are_shown():
    registry = CollectorRegistry()
    metrics = TableMetrics(registry)

    metrics.add(lookups=1, lookup_ids=10, lookup_rows=4)
    metrics.add(lookups=1, lookup_ids=5)

    assert (metrics.value("lookups"), metrics.value("lookup_ids")) == (2, 15)
    shown = generate_latest(registry).decode()
    assert "gradmesh_table_lookup_ids_total 15.0" in shown
    assert "gradmesh_table_cache_hits_total 0.0" in shown


def test_two_meshes_of_one_process_count_apart():
    one, other = TableMetrics(), TableMetrics()

    one.add(pushes=1)

    assert (one.value("pushes"), other.value("pushes")) == (1, 0)
