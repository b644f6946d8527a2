"""The statistics and logs of a wrapper."""

import numpy as np
import pytest

from gradmesh.engine.autograd import Tensor, run_backward
from gradmesh.engine.nn import Linear, Module, Sequential
from gradmesh.trainer.ddp import DistributedDataParallel
from gradmesh.trainer.ddp.timeline import EVENTS
from gradmesh.trainer.errors import UnfinishedReduction


def net():
    return Sequential(*(Linear(10, 10, bias=False) for _ in range(3)))


def test_ddp_logging_data_cpu(world, inputs):
    def job(group):
        ddp = DistributedDataParallel(net(), process_group=group, bucket_cap_mb=0.001)
        ddp.set_runtime_stats_sample_rate(2)
        for step in range(20):
            ddp(inputs(group.rank, step, 4, 10)).sum().backward()
        return ddp.logging_data()

    for rank, data in enumerate(world(2).run(job)):
        assert data["iteration"] == 18
        assert data["prev_iteration_grad_ready_order_indices"] == "2, 1, 0"
        assert (data["world_size"], data["rank"]) == (2, rank)
        assert data["module_name"] == "Sequential"
        assert data["num_parameter_tensors"] == 3
        assert data["total_parameter_size_bytes"] == 1200
        assert data["bucket_sizes"] == "1200"
        assert data["bucket_cap_bytes"] == 1048
        assert data["has_rebuilt_buckets"] == 1
        assert data["rebuilt_bucket_sizes"] == "1200"
        assert data["rebuilt_per_bucket_param_indices"] == "2 1 0"
        assert data["backend_name"] == "tcp"
        assert data["dtypes"] == "float32"
        assert data["unused_parameter_size"] == 0
        assert data["has_error"] == 0
        for name in ("forward_compute", "backward_compute", "backward_comm"):
            assert data[f"{name}_time"] > 0
            assert data[f"avg_{name}_time"] > 0
        assert data["backward_compute_comm_overlap_time"] <= data["backward_comm_time"]
        assert [data[f"{event}_time_host"] > 0 for event in EVENTS] == [True] * len(EVENTS)
        assert all(isinstance(value, (int, str)) for value in data.values())


def test_mixed_dtypes_have_buckets_of_their_own(world):
    class Two(Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Linear(2, 2, dtype="float32"), Linear(2, 2, dtype="float64")

        def forward(self, x, y):
            return self.a(x).sum(), self.b(y).sum()

    ddp = DistributedDataParallel(Two(), process_group=world(1).groups[0])
    data = ddp.logging_data()
    assert data["dtypes"] == "float32, float64"
    assert data["bucket_sizes"] == "48, 24"
    outs = ddp(Tensor(np.ones((1, 2), np.float32)), Tensor(np.ones((1, 2))))
    run_backward(outs)
    assert ddp.module.b.weight.grad.dtype == np.float64


def test_ddp_python_error_logged(world):
    class Fails(Module):
        def __init__(self):
            super().__init__()
            self.fc = Linear(1, 1)

        def forward(self, x):
            raise ArithmeticError("broken module")

    ddp = DistributedDataParallel(Fails(), process_group=world(1).groups[0])
    with pytest.raises(ArithmeticError):
        ddp(None)
    assert ddp.logging_data()["has_error"] == 1
    assert ddp.logging_data()["error"] == "broken module"


def test_a_sample_rate_is_at_least_one(world):
    ddp = DistributedDataParallel(net(), process_group=world(1).groups[0])
    with pytest.raises(ValueError, match="at least 1"):
        ddp.set_runtime_stats_sample_rate(0)


def test_ddp_has_finalized(world, inputs):
    ddp = DistributedDataParallel(net(), process_group=world(1).groups[0])
    ddp(inputs(0, 0, 4, 10)).sum().backward()
    ddp.check_reduction_finished()
    handle = ddp.module[0].weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ddp(inputs(0, 0, 4, 10)).sum().backward()
    handle.remove()
    with pytest.raises(UnfinishedReduction):
        ddp.check_reduction_finished()


def test_statistics_are_logged_periodically(world, inputs, caplog):
    caplog.set_level("INFO", "gradmesh.trainer.ddp")
    ddp = DistributedDataParallel(
        net(), process_group=world(1).groups[0], find_unused_parameters=True
    )
    for step in range(12):
        ddp(inputs(0, step, 4, 10)).sum().backward()

    warned, logged = caplog.records
    assert "found none" in warned.getMessage()
    assert logged.getMessage() == "data parallel"
    assert logged.world_size == 1
    assert logged.iteration == 9
