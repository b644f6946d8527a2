import pytest

from gradmesh.benchmarks import dense


def test_a_row_is_measured_and_reported_at_once() -> None:
    seen: list[str] = []

    (row,) = dense.run(
        workloads=["small-mlp"], seconds=0.01, on_row=lambda row: seen.append(row.workload)
    )

    assert seen == [row.workload] == ["small-mlp"]
    assert row.ours > 0
    assert row.ratio is None


def test_peer_is_measured_in_the_same_run() -> None:
    pytest.importorskip("torch")

    (row,) = dense.run("torch", workloads=["small-mlp"], seconds=0.01)

    assert row.peer is not None
    assert row.ratio == pytest.approx(row.peer / row.ours)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no workloads"):
        dense.run(workloads=["magic"])
    with pytest.raises(ValueError, match="no peer"):
        dense.run("tensorflow")
