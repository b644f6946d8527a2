"""The table of benchmarks of `gradmesh bench`, with their options.

Names of workloads and models are repeated here, so that `--help` does not import numpy; a test
compares them with those of gradmesh.benchmarks.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

LOOKUP_WORKLOADS = (
    *("pull-1", "pull-64", "pull-1024", "pull-65536"),
    *("push-1", "push-64", "push-1024", "push-65536", "batch26"),
)
RPC_WORKLOADS = ("null", "add", "tensor-1k", "tensor-1m", "async-100", "remote", "later")
AUTOGRAD_WORKLOADS = ("chain-1", "chain-2", "chain-4", "fanout-4", "contexts-1000", "optimizer-4")
DENSE_WORKLOADS = (
    "mlp-b256",
    "mlp-b2048",
    "mlp-b2048-mkl",
    "embedding-bag",
    "small-mlp",
    "resnet50",
)
DDP_MODELS = ("resnet50", "resnet101", "resnext50_32x4d", "resnext101_32x8d", "mlp")
HYBRID_WORKLOADS = ("seed", "realistic-b256", "realistic-b2048", "embedding-bound", "seed-t8-s8")
STEP_WORKLOADS = ("small", "dlrm")
RECOVERY_WORKLOADS = ("log", "snapshot")
LANES = ("shm", "tcp", "stream")
BACKENDS = ("shm", "tcp")
SIZES = ("4KiB", "1MiB", "25MiB")

_TURNS = "Measure this peer alternately with ours."


class Benchmark(NamedTuple):
    """One command.

    Attributes:
        run: Module of gradmesh.benchmarks, and its function that takes `echo` and the options.
        help: Text for `--help`.
        params: Its options and arguments.
        fixed: More arguments of the function.
    """

    run: str
    help: str
    params: Sequence[click.Parameter]
    fixed: dict[str, Any] = {}  # noqa: RUF012


def _split(
    convert: Callable[[str], object], context: click.Context, param: click.Parameter, text: str
) -> tuple[object, ...]:
    """Return the converted items of a list with commas; `convert` raises ValueError."""
    try:
        return tuple(convert(item.strip()) for item in text.split(","))
    except ValueError as error:
        raise click.BadParameter(str(error), context, param) from None


def _one_of(what: str, known: Sequence[str], text: str) -> str:
    if text not in known:
        raise ValueError(f"no {what} is called {text!r}; use {', '.join(known)}")
    return text


def _world(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise ValueError(f"{text!r} is not a number of processes from 1 to 64")
    return int(text)


def _rows(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"expected whole numbers, got {text!r}")
    return int(text)


def _option(*names: str, **attributes: Any) -> click.Option:
    return click.Option(names, **attributes)


def _count(
    flag: str, help: str, default: int | None = None, *, least: int = 1, most: int | None = None
) -> click.Option:
    """Return an option that takes a whole number."""
    shown = help if default is None else f"{help}  [default: {default}]"
    return _option(flag, type=click.IntRange(least, most), default=default, help=shown)


def _against(help: str = _TURNS) -> click.Option:
    return _option("--against", type=click.Choice(["torch"]), help=help)


def _named(
    flag: str, name: str, what: str, known: Sequence[str], **attributes: Any
) -> click.Option:
    """Return an option that takes a subset of the known names, separated by commas."""
    attributes.setdefault("default", ",".join(known))
    return _option(
        flag, name, callback=partial(_split, partial(_one_of, what, known)), **attributes
    )


def _lanes() -> click.Option:
    help = "Lanes to measure: shm, tcp, stream.  [default: all]"
    return _named("--lane", "lanes", "lane", LANES, metavar="LANE,...", help=help)


def _workload_list(known: Sequence[str], example: str) -> click.Option:
    help = f"Measure only these, such as {example}.  [default: all]"
    return _named("--workload", "workloads", "workload", known, metavar="NAME,...", help=help)


def _workload(known: Sequence[str]) -> click.Option:
    return _option(
        "--workload",
        "workloads",
        type=click.Choice(known),
        multiple=True,
        help="Only this one; may be given several times.  [default: all]",
        callback=lambda context, option, chosen: chosen or known,
    )


def _worlds(default: str) -> click.Option:
    return _option(
        "--world",
        "worlds",
        callback=partial(_split, _world),
        default=default,
        metavar="N,...",
        help=f"Numbers of processes.  [default: {default}]",
    )


def _json(help: str = "Write the rows here.") -> click.Option:
    return _option("--json", "file", type=click.Path(path_type=Path), help=help)


def _seconds(
    default: float,
    what: str = "About how long one workload takes on one side.",
    least: float = 0.01,
) -> click.Option:
    return _option(
        "--seconds",
        type=click.FloatRange(min=least),
        default=default,
        help=f"{what}  [default: {default:g}]",
    )


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

BENCHMARKS = {
    "allreduce": Benchmark(
        "allreduce:command",
        """Sum float32 arrays over processes of this machine.

        Rows are named like shm-4KiB-w2 and tcp-25MiB-w4. The ratio is the peer's median over ours:
        above 1 we are faster. The peer is torch.distributed with gloo.
        """,
        [
            _against(),
            _named(
                *("--backend", "backends", "backend", BACKENDS),
                metavar="NAME,...",
                help="Backends to measure: shm, tcp.  [default: all]",
            ),
            _worlds("2,4"),
            _named(
                *("--size", "sizes", "size", SIZES),
                metavar="SIZE,...",
                help="Sizes of the array: 4KiB, 1MiB, 25MiB.  [default: all]",
            ),
            _json(),
            _seconds(2.0, "About how long one row takes on one side."),
        ],
    ),
    "autograd": Benchmark(
        "autograd:command",
        """Run contexts with a forward and a backward over up to four other workers.

        chain-N calls along N workers and back, fanout-4 calls four at once, contexts-1000 runs a
        thousand small contexts, optimizer-4 is a step of a distributed optimizer over four owners.
        Each runs in smart mode on lanes, in fast mode (-fast; async steps) and on gRPC streams
        (-stream). The ratio is the peer's median over ours: above 1 we are faster.
        """,
        [
            _against(),
            _workload_list(AUTOGRAD_WORKLOADS, "chain-1,fanout-4"),
            _json(),
            _seconds(5.0),
        ],
    ),
    "checkpoint": Benchmark(
        "step:checkpoint_command",
        """Training steps with checkpoints in the background, compared with none.

        Two parameter servers, one trainer. The first row is their total cost per mean step, the
        second the time that training waited for them.
        """,
        [
            _workload(STEP_WORKLOADS),
            _json(),
            _option(
                "--every-s",
                type=click.FloatRange(min=0.01),
                default=5.0,
                help="Seconds of training between two checkpoints.  [default: 5]",
            ),
            _count("--turns", "", 5),
        ],
    ),
    "ddp": Benchmark(
        "ddp:command",
        """Measure training steps under DistributedDataParallel.

        One row for each number of processes: seconds per iteration and examples per second of one
        process, at four percentiles. The first row is a step without DDP. Default sizes are small
        enough for a CPU: --batch-size 32 --image-size 224 are those of the original benchmark.
        """,
        [
            _option(
                "--model",
                "models",
                multiple=True,
                type=click.Choice(DDP_MODELS),
                help="Model to measure; may be repeated.  [default: mlp and resnet50]",
            ),
            _worlds("1,2,4"),
            _option(
                "--backend",
                type=click.Choice(["auto", "shm", "tcp"]),
                default="auto",
                help="Backend of the process group.  [default: auto]",
            ),
            _option(
                "--bucket-mb",
                type=click.FloatRange(min=0, min_open=True),
                default=25.0,
                help="Cap of the buckets in MiB.  [default: 25]",
            ),
            _option("--view/--no-view", default=False, help="Make gradients views of the buckets."),
            _count("--batch-size", "Examples per process.  [default: 2; 64]"),
            _count("--image-size", "Pixels.", 32, least=32),
            _count("--width", "Width of the mlp.", 1024, least=2),
            _count("--warmup", "Iterations not measured.", 5),
            _count("--rounds", "Iterations measured.", 10),
            _against(
                "Instead measure the cost of DDP per step of the mlp, against torch's DDP on gloo."
            ),
            _json("Write the results here."),
        ],
    ),
    "dense": Benchmark(
        "dense:command",
        """Train dense layers and an embedding bag in one process, forward, backward and step.

        The row of MKL is skipped if gradmesh[mkl] is not installed.
        """,
        [
            _against("Measure a peer in the same run."),
            _workload(DENSE_WORKLOADS),
            _json(),
            _seconds(5.0, "Seconds to measure each workload."),
            _count("--threads", "Threads of both sides.", 1),
        ],
    ),
    "diff": Benchmark(
        "ddp_report:command",
        "Compare two files of `gradmesh bench ddp --json`: positive means that TEST is faster.",
        [click.Argument(["base"], type=_FILE), click.Argument(["test"], type=_FILE)],
    ),
    "durability": Benchmark(
        "step:command",
        """Training steps with the servers' log in modes os and fsync, compared with none.

        Two parameter servers, one trainer. The cost is the time that the log adds to a step.
        """,
        [_workload(STEP_WORKLOADS), _json(), _seconds(10.0)],
        {"sides": "durability"},
    ),
    "hybrid": Benchmark(
        "hybrid:command",
        """Train with tables on servers and dense layers under DDP, split into the parts of a step.

        With --trainers, --parameter-servers, --embeddings or --dim it runs the benchmark of torch's
        examples: epochs of 10 batches of about 7 bags, one table per server, and its table of
        percentiles per trainer. Otherwise it measures steps of 2 trainers and 1 server, and of 8
        and 8. With --against it alternates with the peer: torch RPC, DDP over gloo, distributed
        autograd and optimizer. A ratio above 1 means that we are faster.
        """,
        [
            _against("Measure this peer alternately."),
            _option(
                "--workload",
                "workloads",
                type=click.Choice(HYBRID_WORKLOADS),
                multiple=True,
                help="Only this one; may be given several times.  [default: all]",
            ),
            _count("--trainers", "Trainers of the seed benchmark.", most=64),
            _count("--parameter-servers", "Parameter servers of the seed benchmark.", most=64),
            _count("--embeddings", "Rows of a table of the seed benchmark."),
            _count("--dim", "Elements of a row of the seed benchmark.", most=4096),
            _count("--epochs", "Epochs of the seed benchmark.", 100),
            _count("--warmup-cycles", "Epochs before the measurement.", 5, least=0),
            _count("--rows", "Rows of each of the 26 realistic tables.", 100_000),
            _count("--prefetch", "Batches that our side prefetches.", 0, least=0, most=16),
            _option(
                "--lane", type=click.Choice(["auto", *LANES]), default="auto", help="Our lane."
            ),
            _json(),
            _seconds(10.0, least=0.1),
        ],
    ),
    "load": Benchmark(
        "load:command",
        """Look rows up on one parameter server beside idle members, half-open connections and busy
        clients.

        Each row adds a load to those before; the last is measured when all are gone. "Slower" and
        "growth" compare the 99th percentile and the server's memory with the unloaded server's.
        """,
        [
            _count("--members", "Members that only renew their leases.", 1000, least=0),
            _count("--clients", "Clients that look rows up all the time.", 200, least=0),
            _count("--half-open", "Connections that send nothing.", 2000, least=0),
            _json(),
            _seconds(10.0, "Seconds to measure each row.", 0.1),
        ],
    ),
    "lookup": Benchmark(
        "lookup:command",
        """Pull and push rows of a table of 1M x 64, one client and one server.

        Rows are named like pull-64-shm and push-65536-stream; batch26 looks up 2048 x 26 ids of 26
        tables. The ratio is the peer's median over ours: above 1 we are faster.
        """,
        [
            _against(),
            _lanes(),
            _workload_list(LOOKUP_WORKLOADS, "pull-1,batch26"),
            _count("--batch-rows", "Rows of each of the 26 tables of batch26.", 100_000),
            _count(
                "--pairs",
                "Measure this many clients and servers against one of each, without a peer.",
                least=2,
            ),
            _option(
                "--durability",
                type=click.Choice(["off", "os", "fsync"]),
                default="off",
                help="Durability of our server's log; the peer has no log.  [default: off]",
            ),
            _json(),
            _seconds(2.0),
        ],
    ),
    "prefetch": Benchmark(
        "prefetch:command",
        """Hide lookups behind the dense layers: one trainer, one server, with and without
        prefetching.

        "Hidden" is the fraction of the time for a batch's rows that prefetch by one step saves. It
        cannot hide refreshing the rows that the step in between changed, nor laying rows out for
        the layers.
        """,
        [
            _lanes(),
            _count("--batch", "Samples.", 1024),
            _count("--rows", "Rows of each of the 26 tables.", 100_000),
            _json(),
            _seconds(5.0, "About how long one lane takes on one side.", 0.1),
        ],
    ),
    "recovery": Benchmark(
        "recovery:command",
        "Seconds per gigabyte that a killed parameter server takes to recover its rows.",
        [
            _workload(RECOVERY_WORKLOADS),
            _json(),
            _count("--megabytes", "Data on disk when the server is killed.", 512),
        ],
    ),
    "rpc": Benchmark(
        "rpc:command",
        """Call registered functions of another process.

        null takes and returns nothing, tensor-1m echoes 4 MB, async-100 makes 100 calls at once,
        remote creates a reference and fetches its value, later answers with a future. The ratio is
        the peer's median over ours: above 1 we are faster.
        """,
        [
            _against(),
            _lanes(),
            _workload_list(RPC_WORKLOADS, "null,tensor-1k"),
            _json(),
            _seconds(2.0),
        ],
    ),
    "scale": Benchmark(
        "scale:command",
        """Grow the hybrid step: 1, 2 and 4 trainers and servers, batches, tables.

        The last columns are the fraction of distinct rows among the ids of a batch, the bytes that
        a trainer moves per step, their ratio to the least possible, the peak memory of a trainer,
        and the size of all tables. docs/scaling.md explains the results.
        """,
        [
            _count("--rows", "Of a table.", 100_000, least=10),
            _json(),
            _seconds(5.0, "About how long one size takes.", 0.1),
        ],
    ),
    "step": Benchmark(
        "step:command",
        """Steps of a synchronous run, compared with uncoordinated steps.

        Two parameter servers without a log, one trainer. The cost is the time of coordination.
        """,
        [_workload(STEP_WORKLOADS), _json(), _seconds(10.0)],
        {"sides": "coordination"},
    ),
    "table": Benchmark(
        "table:command",
        """Look up 65536 rows of growing tables inside one process, dense and hash.

        The floor is a plain gather from as much memory; the ratio to it is constant if the cost of
        lookups does not depend on the size.
        """,
        [
            _option(
                "--rows",
                "sizes",
                callback=partial(_split, _rows),
                default="1000000,10000000,50000000",
                metavar="N,...",
                help="Rows of the tables.  [default: 1M, 10M, 50M]",
            ),
            _count("--dim", "Elements of a row.", 64),
            _json(),
            _seconds(2.0, "About how long one measurement takes."),
        ],
    ),
}
