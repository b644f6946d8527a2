from gradmesh.benchmarks import rpc


def test_a_row_is_measured_on_each_lane() -> None:
    null = [load for load in rpc.loads() if load.name == "null"]

    rows = rpc.run(["shm", "stream"], against_torch=False, seconds=0.02, blocks=1, only=null)

    assert [row.workload for row in rows] == ["null-shm", "null-stream"]
    assert all(row.ours > 0 and row.ratio is None for row in rows)
