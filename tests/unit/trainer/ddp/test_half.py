"""Averages of float16 and bfloat16 stay in their range, and are rounded once."""

import contextlib

import ml_dtypes
import numpy as np
import pytest

from gradmesh.engine.autograd import RowGrad, Tensor
from gradmesh.engine.nn import Embedding, Module, Parameter
from gradmesh.trainer.ddp import DistributedDataParallel, MixedPrecision, comm_hooks

# Three of these leave the range of float16; bfloat16 has that of float32.
BIG = {np.float16: 30_000.0, ml_dtypes.bfloat16: 1e38}
SIZE = 3


class Scale(Module):
    """A matrix and a vector whose gradients are their factors."""

    def __init__(self, dtype):
        super().__init__()
        self.wide = Parameter(np.zeros((8, 8), dtype))
        self.narrow = Parameter(np.zeros(4, dtype))

    def forward(self, value):
        return (self.wide * value).sum() + (self.narrow * value).sum()


def gradients(group, dtype, value, options=None, hook=None, micro_batches=1):
    """Return the averages of one value a rank, through a module of a dtype."""
    module = Scale(dtype)
    options = dict(options or {})
    if options.pop("delayed", False):
        options["delay_all_reduce_named_params"] = [("narrow", module.narrow)]
        options["param_to_hook_all_reduce"] = module.wide
    ddp = DistributedDataParallel(module, process_group=group, **options)
    if hook is not None:
        ddp.register_comm_hook(*hook())
    for micro in range(micro_batches):
        is_last = micro + 1 == micro_batches
        with contextlib.nullcontext() if is_last else ddp.no_sync():
            short = options["mixed_precision"].param_dtype if "mixed_precision" in options else None
            given = np.asarray(value / micro_batches, short or module.wide.dtype)
            ddp(Tensor(given)).backward()
    return [parameter.grad.data.copy() for parameter in module.parameters()]


def power_sgd():
    state = comm_hooks.PowerSGDState(
        None, start_power_sgd_iter=0, min_compression_rate=1, use_error_feedback=False,
        warm_start=False,
    )  # fmt: skip
    return state, comm_hooks.power_sgd_hook


def batched_power_sgd():
    return power_sgd()[0], comm_hooks.batched_power_sgd_hook


CASES = {
    "plain": {},
    "find": {"options": {"find_unused_parameters": True}},
    "static": {"options": {"static_graph": True}},
    "view": {"options": {"gradient_as_bucket_view": True}},
    "batched": {"options": {"batched_grad_copy": True}},
    "delayed": {"options": {"delayed": True}},
    "no_sync": {"micro_batches": 2},
    "allreduce_hook": {"hook": lambda: (None, comm_hooks.allreduce_hook)},
    "bf16_hook": {"hook": lambda: (None, comm_hooks.bf16_compress_hook)},
    "bf16_wrapper": {
        "hook": lambda: (None, comm_hooks.bf16_compress_wrapper(comm_hooks.allreduce_hook))
    },
    "post_local_hook": {
        "hook": lambda: (
            comm_hooks.PostLocalSGDState(None, None, 5),
            comm_hooks.post_local_sgd_hook,
        )
    },
    "quantised": {"hook": lambda: (None, comm_hooks.quantization_pertensor_hook)},
}
FLOAT16_ONLY = {
    "fp16_hook": {"hook": lambda: (None, comm_hooks.fp16_compress_hook)},
    "fp16_wrapper": {
        "hook": lambda: (None, comm_hooks.fp16_compress_wrapper(comm_hooks.allreduce_hook))
    },
    "power_sgd": {"hook": power_sgd},
    "batched_power_sgd": {"hook": batched_power_sgd},
}


@pytest.fixture(scope="module", params=["tcp", "shm"])
def three(request):
    made = request.getfixturevalue("make_world")(SIZE, backend=request.param)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(dtype, name) for dtype in BIG for name in CASES]
    + [(np.float16, name) for name in FLOAT16_ONLY],
    ids=lambda value: value if isinstance(value, str) else np.dtype(value).name,
)
def test_an_average_stays_in_the_range_of_its_dtype(three, dtype, name):
    case = {**CASES, **FLOAT16_ONLY}[name]
    wanted = [BIG[dtype]] * 2
    if name == "batched_power_sgd":
        # One thin product for all is not near the average; float32 has the same product.
        wanted = three.run(lambda group: gradients(group, np.float32, BIG[dtype], **case))[0]
    for averages in three.run(lambda group: gradients(group, dtype, BIG[dtype], **case)):
        for average, expected in zip(averages, wanted, strict=True):
            np.testing.assert_allclose(average.astype(np.float64), expected, rtol=1e-2)


@pytest.mark.parametrize("dtype", BIG, ids=lambda dtype: np.dtype(dtype).name)
def test_an_average_is_rounded_once(three, dtype):
    values = np.array([0.1, 0.7, 0.3]).astype(dtype)

    got = three.run(lambda group: gradients(group, dtype, float(values[group.rank])))

    sums = (np.float32(values[0]) + np.float32(values[1])) + np.float32(values[2])
    expected = np.asarray(sums / np.float32(3)).astype(dtype)
    assert all((average == expected).all() for averages in got for average in averages)


@pytest.mark.parametrize("as_view", [False, True], ids=["copy", "view"])
@pytest.mark.parametrize("by_initial", [True, False], ids=["initial", "active"])
@pytest.mark.parametrize("precision", [None, MixedPrecision(reduce_dtype=np.float16)])
def test_join_divides_before_a_sum_leaves_the_range(three, by_initial, precision, as_view):
    dtype = np.float16 if precision is None else np.float32

    def job(group):
        options = {"gradient_as_bucket_view": as_view, "mixed_precision": precision}
        ddp = DistributedDataParallel(Scale(dtype), process_group=group, **options)
        grads = []
        with ddp.join(divide_by_initial_world_size=by_initial):
            for _ in range(2 if group.rank else 1):
                ddp.zero_grad()
                ddp(Tensor(np.asarray(60_000, dtype))).backward()
                grads.append(float(ddp.module.narrow.grad.data[0]))
        return grads

    later = 40_000 if by_initial else 60_000
    assert three.run(job) == [[60_000], [60_000, later], [60_000, later]]


@pytest.mark.parametrize("by_initial", [True, False], ids=["initial", "active"])
@pytest.mark.parametrize("how", ["gathered", "announced", "fp16_compress_hook", "allreduce_hook"])
def test_rows_stay_in_range(three, how, by_initial):
    def job(group):
        table = Embedding(4, 2, sparse=True)
        table.weight.data = np.zeros((4, 2), np.float16)
        ddp = DistributedDataParallel(table, process_group=group)
        if how.endswith("hook"):
            ddp.register_comm_hook(None, getattr(comm_hooks, how))
        with ddp.join(divide_by_initial_world_size=by_initial):
            if how == "announced":
                ddp.set_sparse_ids({"weight": [1]})
            (
                ddp(Tensor(np.array([1]))) * Tensor(np.full((1, 2), 30_000, np.float16))
            ).sum().backward()
            assert isinstance(table.weight.grad, RowGrad)
            return table.weight.grad.to_dense()[1].tolist()

    assert three.run(job) == [[pytest.approx(30_000, rel=1e-3)] * 2] * 3


@pytest.mark.parametrize("as_view", [False, True], ids=["copy", "view"])
@pytest.mark.parametrize("dtype", BIG, ids=lambda dtype: np.dtype(dtype).name)
def test_mixed_precision_averages_in_range(three, dtype, as_view):
    options = {
        "mixed_precision": MixedPrecision(reduce_dtype=dtype),
        "gradient_as_bucket_view": as_view,
    }
    for averages in three.run(lambda group: gradients(group, np.float32, BIG[dtype], options)):
        for average in averages:
            assert average.dtype == np.float32
            np.testing.assert_allclose(average, BIG[dtype], rtol=1e-2)
