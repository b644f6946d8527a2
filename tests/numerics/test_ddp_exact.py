"""N ranks under DistributedDataParallel equal one process on their micro-batches, bit for bit.

One process runs the ranks' micro-batches in rank order, adds their gradients in that order,
divides the sum by the number of ranks, and steps. Each rank adds up its own micro-batches of a
step first; ranks without inputs add nothing. That holds for every option that changes how
gradients travel, on every backend.
"""

import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gradmesh.engine.autograd import Tensor, run_backward
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import BatchNorm1d, Embedding, Linear, Module
from gradmesh.engine.optim import SGD
from gradmesh.trainer.ddp import (
    DistributedDataParallel,
    apply_optimizer_in_backward,
    comm_hooks,
)
from gradmesh.trainer.process_group import LocalProcessGroup, connect

STEPS, ROWS, BATCH = 4, 12, 6
LR = 0.1


class Net(Module):
    """A table, layers of two dtypes' worth of sizes, and one unused layer."""

    def __init__(self, sparse, with_spare, with_norm):
        super().__init__()
        generator = Generator(7)
        self.table = Embedding(ROWS, 5, sparse=sparse, generator=generator)
        self.first = Linear(5, 9, generator=generator)
        self.norm = BatchNorm1d(9) if with_norm else None
        self.last = Linear(9, 3, generator=generator)
        if with_spare:
            self.spare = Linear(4, 4, generator=generator)

    def forward(self, ids, uses_first):
        rows = self.table(ids)
        hidden = self.first(rows) if uses_first else Tensor(np.ones((BATCH, 9), np.float32))
        return self.last((self.norm(hidden) if self.norm else hidden).tanh())


def ids_of(rank, micro_step):
    return Tensor(np.random.default_rng([rank, micro_step]).integers(0, ROWS, BATCH))


def loss_of(model, rank, micro_step, changes):
    uses_first = not changes or (rank + micro_step) % 2 == 0
    return (model(ids_of(rank, micro_step), uses_first) ** 2).sum()


class MemoryStore:
    def __init__(self):
        self._values = {}
        self._changed = threading.Condition()

    def set(self, key, value):
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key, timeout_s):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TimeoutError(key)
            return self._values[key]


@pytest.fixture(scope="module")
def groups():
    """Groups by backend and size, each built once."""
    made = {}
    pool = ThreadPoolExecutor(8)

    def meet(backend, size):
        if (backend, size) not in made:
            store = MemoryStore()

            def join(rank):
                return connect(
                    store,
                    backend=backend,
                    generation=1,
                    rank=rank,
                    world_size=size,
                    timeout_s=30,
                )

            ranks = [LocalProcessGroup()] if size == 1 else list(pool.map(join, range(size)))
            made[backend, size] = ranks
        return made[backend, size]

    yield meet
    for ranks in made.values():
        for group in ranks:
            group.close()
    pool.shutdown()


def delay(model, names):
    """Return the options that average some parameters apart, when the table's gradient comes."""
    if not names:
        return {}
    named = dict(model.named_parameters())
    return {
        "delay_all_reduce_named_params": [(name, named[name]) for name in names],
        "param_to_hook_all_reduce": named["table.weight"],
    }


def train_together(ranks, case):
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda group: train(group, case), ranks, timeout=120))


def train(group, case):
    """Train as one rank; return the bytes of the parameters."""
    model = Net(case["sparse"], case["spare"], case["norm"])
    if case["in_backward"]:
        apply_optimizer_in_backward(SGD, model.parameters(), {"lr": LR})
    ddp = DistributedDataParallel(
        model, process_group=group, **case["options"], **delay(model, case["delayed"])
    )
    optimizer = SGD(model.parameters(), lr=LR)
    if case["hook"] == "optimizer":
        hook = comm_hooks.hook_then_optimizer(comm_hooks.allreduce_hook, optimizer)
        ddp.register_comm_hook(None, hook)
    elif case["hook"]:
        ddp.register_comm_hook(None, comm_hooks.allreduce_hook)
    if case["fused"]:
        ddp.register_fused_optim(SGD, lr=LR)
    counts = counts_of(group.size, case)
    with ddp.join(case["divisor"] == "all", enable=len(set(counts)) > 1):
        for step in range(counts[group.rank]):
            take_step(ddp, optimizer, group, step, case)
    return [p.data.tobytes() for p in model.parameters()]


def take_step(ddp, optimizer, group, step, case):
    ddp.zero_grad()
    if case["announces"]:
        ids = [ids_of(rank, step).data for rank in range(group.size)]
        ddp.set_sparse_ids({"table.weight": np.concatenate(ids)})
    into = {} if case["context"] else None
    for micro in range(case["micro_batches"]):
        number = step * case["micro_batches"] + micro
        is_last = micro + 1 == case["micro_batches"]
        with contextlib.nullcontext() if is_last else ddp.no_sync():
            run_backward([loss_of(ddp, group.rank, number, case["changes"])], into=into)
    if not (case["in_backward"] or case["fused"] or case["hook"] == "optimizer"):
        optimizer.step(into)


def counts_of(size, case):
    """Return how many steps each rank has inputs for."""
    return [STEPS - case["ends_earlier"].get(rank, 0) for rank in range(size)]


def train_alone(size, case):
    model = Net(case["sparse"], case["spare"], case["norm"])
    optimizer = SGD(model.parameters(), lr=LR)
    counts = counts_of(size, case)
    for step in range(max(counts)):
        total = {}
        active = [rank for rank in range(size) if step < counts[rank]]
        for rank in active:
            own = {}
            for micro in range(case["micro_batches"]):
                number = step * case["micro_batches"] + micro
                run_backward([loss_of(model, rank, number, case["changes"])], into=own)
            for leaf, grad in own.items():
                # A rank's rows of one id are summed before ranks are.
                dense = grad.to_dense() if hasattr(grad, "to_dense") else grad
                total[leaf] = total[leaf] + dense if leaf in total else dense
        divisor = np.float32(size if case["divisor"] == "all" else len(active))
        optimizer.step({leaf: grad / divisor for leaf, grad in total.items()})
    return [p.data.tobytes() for p in model.parameters()]


PLAIN = {
    "sparse": False,
    "spare": False,
    "norm": False,
    "changes": False,
    "micro_batches": 1,
    "hook": None,
    "in_backward": False,
    "fused": False,
    "delayed": (),
    "announces": False,
    "context": False,
    "ends_earlier": {},
    "divisor": "all",
}
CAPS = {"big": {}, "small": {"bucket_cap_mb": 0.0001}, "list": {"bucket_cap_mb_list": [1e-4, 1]}}


def case_of(name, **changes):
    options = changes.pop("options", {})
    return pytest.param({**PLAIN, **changes, "options": options}, id=name)


def table():
    """Every combination of layout, graph and gradient memory; then the other options."""
    for (cap, caps), view, graph, micro, sparse in itertools.product(
        CAPS.items(),
        (False, True),
        ("plain", "find", "find-changes", "skip", "static"),
        (1, 3),
        (False, True),
    ):
        options = {**caps, "gradient_as_bucket_view": view}
        options["find_unused_parameters"] = graph.startswith("find") or graph == "skip"
        options["skip_all_reduce_unused_params"] = graph == "skip"
        options["static_graph"] = graph == "static"
        words = [cap, "view" if view else "copy", graph, f"micro{micro}"]
        yield case_of(
            "-".join([*words, "rows" if sparse else "dense"]),
            options=options,
            spare=graph != "plain",
            changes=graph == "find-changes",
            micro_batches=micro,
            sparse=sparse,
        )
    for (cap, caps), view, batched in itertools.product(CAPS.items(), (False, True), (False, True)):
        options = {**caps, "gradient_as_bucket_view": view, "batched_grad_copy": batched}
        words = "-".join([cap, "view" if view else "copy", "batched" if batched else "each"])
        yield case_of(f"hook-{words}", hook="average", options=options)
        yield case_of(f"hook-{words}-rows", hook="average", sparse=True, options=options)
        yield case_of(f"hook-{words}-micro3", hook="average", micro_batches=3, options=options)
        yield case_of(f"hook-steps-{words}", hook="optimizer", options=options)
        yield case_of(f"in-backward-{words}", in_backward=True, options=options)
        yield case_of(f"fused-{words}", fused=True, options=options)
        yield case_of(f"announced-{words}", announces=True, sparse=True, options=options)
        delayed = ("first.weight", "last.bias")
        yield case_of(f"delayed-{words}", delayed=delayed, options=options)
        yield case_of(f"delayed-{words}-micro3", delayed=delayed, micro_batches=3, options=options)
    for graph in ("find_unused_parameters", "static_graph"):
        for batched in (False, True):
            options = {graph: True, "batched_grad_copy": batched}
            name = f"hook-{graph}-{'batched' if batched else 'each'}"
            yield case_of(name, hook="average", spare=True, options=options)
    for (cap, caps), view, graph, divisor, sparse, ends in itertools.product(
        CAPS.items(),
        (False, True),
        ("plain", "find", "static"),
        ("all", "active"),
        (False, True),
        ({0: 2}, {1: 1, 2: STEPS}),
    ):
        options = {**caps, "gradient_as_bucket_view": view}
        options["find_unused_parameters"] = graph == "find"
        options["static_graph"] = graph == "static"
        words = [cap, "view" if view else "copy", graph, divisor, "rows" if sparse else "dense"]
        yield case_of(
            "-".join(["join", *words, *(f"{rank}-{by}" for rank, by in ends.items())]),
            options=options,
            spare=graph != "plain",
            divisor=divisor,
            sparse=sparse,
            ends_earlier=ends,
        )
    yield case_of("buffers", norm=True)
    yield case_of("no-buffer-sync", norm=True, options={"forward_sync_buffers": False})
    for view, find, batched, sparse in itertools.product((False, True), repeat=4):
        words = [
            "view" if view else "copy",
            "find" if find else "plain",
            "batched" if batched else "each",
            "rows" if sparse else "dense",
        ]
        yield case_of(
            "-".join(["context", *words]),
            context=True,
            spare=find,
            changes=find,
            sparse=sparse,
            options={
                "gradient_as_bucket_view": view,
                "find_unused_parameters": find,
                "batched_grad_copy": batched,
            },
        )


@pytest.mark.parametrize("case", list(table()))
def test_three_ranks_equal_one_process_bit_for_bit(groups, case):
    alone = train_alone(3, case)
    for rank, together in enumerate(train_together(groups("tcp", 3), case)):
        assert together == alone, rank


@pytest.mark.parametrize(("backend", "size"), [("local", 1), ("tcp", 2), ("shm", 2), ("shm", 4)])
@pytest.mark.parametrize(
    "case",
    [
        case_of("plain"),
        case_of("view-micro", micro_batches=2, options={"gradient_as_bucket_view": True}),
        case_of("find-rows", sparse=True, spare=True, options={"find_unused_parameters": True}),
    ],
)
def test_every_backend_equals_one_process_bit_for_bit(groups, backend, size, case):
    alone = train_alone(size, case)
    for rank, together in enumerate(train_together(groups(backend, size), case)):
        assert together == alone, rank


MPI_CASES = [
    "big-copy-plain-micro1-dense",
    "small-view-find-changes-micro3-rows",
    "list-copy-static-micro1-rows",
    "small-copy-skip-micro1-dense",
    "hook-small-view-each-rows",
    "join-small-copy-find-active-rows-0-2",
    "context-view-find-each-rows",
]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mpi_equals_one_process_bit_for_bit(tmp_path):
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if importlib.util.find_spec("mpi4py") is None or mpiexec is None:
        pytest.skip("mpi4py and mpiexec are not installed: make parity-setup")
    script = Path(__file__).with_name("mpi_process.py")

    done = subprocess.run(
        [mpiexec, "-n", "3", sys.executable, script, tmp_path, *MPI_CASES],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    cases = {case.id: case.values[0] for case in table()}
    expected = {name: digest(train_alone(3, cases[name])) for name in MPI_CASES}
    assert [json.loads(line) for line in done.stdout.splitlines()] == [expected] * 3


def digest(parameters):
    """Return a digest of all bits."""
    return hashlib.sha256(b"".join(parameters)).hexdigest()
