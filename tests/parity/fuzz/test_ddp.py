"""A few random DDP configurations agree with torch over gloo; `make fuzz-ddp` runs many."""

import dataclasses
import io
import logging
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.parity.fuzz.ddp_compare import KNOWN, raises_alike
from tests.parity.fuzz.ddp_config import EXTRAS, FAULTS, PLAINEST, draw
from tests.parity.fuzz.ddp_run import Pair, shown, shrink
from tests.parity.fuzz.ddp_train import Outcome
from tests.parity.fuzz.seeds import Progress

DOCS = Path(__file__).parents[3] / "docs/ddp.md"
# Everything once: joins, hooks, mixed precision, sparse rows, unused parameters, two mistakes.
SEEDS = range(1000, 1040)


@pytest.fixture(scope="module")
def pair():
    logging.getLogger("gradmesh").setLevel(logging.ERROR)
    made = Pair()
    yield made
    made.close()
    logging.getLogger("gradmesh").setLevel(logging.NOTSET)


@pytest.mark.filterwarnings("ignore:broadcast_buffers:FutureWarning")
def test_random_configurations_agree_with_torch(pair):
    # Mistakes in the middle of training cost a restart of torch: left to the long run.
    chosen = [config for config in map(draw, SEEDS) if not may_restart(config)]
    found = {config.seed: pair.compare(config) for config in chosen}

    assert len(found) > 25
    assert not {seed: texts for seed, texts in found.items() if texts}


def may_restart(config):
    begins_apart = config.options.get("static_graph") and config.micro[0] > 1
    return begins_apart or config.throws or config.fault in ("unused", "graph_changed")


SKIPPED = ["find_unused_parameters", "skip_all_reduce_unused_params", "gradient_as_bucket_view"]


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        (
            "with `skip_all_reduce_unused_params`",
            {
                "seed": 279,
                "blocks": ("norm", "norm", "double"),
                "options": dict.fromkeys(SKIPPED, True),
                "steps": (2, 2),
                "gates": "steps",
                "zero": "never",
            },
        ),
        ("with optimizers in backward", {"extra": "last_in_backward"}),
    ],
    ids=["skipped", "stepped"],
)
def test_where_torch_differs_ours_equals_torch_without_the_option(pair, row, fields):
    progress = Progress("", "", io.StringIO())

    assert pair.compare(dataclasses.replace(PLAINEST, **fields), progress) == []

    assert [met.startswith(row) for met in progress.known] == [True]


def test_a_wrapped_hook_takes_unused_parameters(pair):
    # torch's fails here; the library compares with its plain hook, which means the same.
    config = dataclasses.replace(
        PLAINEST,
        seed=20019,
        blocks=("vector", "linear", "double"),
        options={"find_unused_parameters": True},
        steps=(2, 2),
        gates="ranks",
        hook="fp16_wrapper",
    )
    used = [[config.runs(block, rank, 0) for block in range(3)] for rank in range(2)]
    assert used[0] != used[1]

    assert pair.compare(config) == []


def test_every_known_difference_is_a_row_of_the_docs():
    text = DOCS.read_text().partition("\n## Differences")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ")[0].strip() for line in text.splitlines()]

    assert [each.row for each in KNOWN if each.row not in rows] == []


def test_a_seed_gives_one_configuration_and_seeds_differ():
    drawn = [draw(seed) for seed in range(300)]

    assert drawn == [draw(seed) for seed in range(300)]
    assert {config.fault for config in drawn} == {"", *FAULTS}
    assert {config.extra for config in drawn} == {"", *EXTRAS}
    assert {config.dtype for config in drawn} == {"float32", "float16", "bfloat16"}
    assert {config.world for config in drawn} == {2, 3}
    assert any(config.is_uneven for config in drawn)


def test_shrinking_keeps_the_difference_and_ends_in_a_line():
    def compare(config):
        if config.momentum and "norm" in config.blocks:
            return [f"rank 0: step {config.steps[0] - 1}, gradient first.bias: differs by 1 of 2"]
        # Another difference, which a search for the first one must not end in.
        return [] if config.hook else ["rank 0: here step 0: A: x; torch step None: fine"]

    config = dataclasses.replace(draw(7), blocks=("linear", "norm", "double"), momentum=0.9)
    small = shrink(dataclasses.replace(config, hook="noop", fault=""), compare)

    wanted = dataclasses.replace(PLAINEST, seed=7, blocks=("norm",), momentum=0.9)
    assert small == dataclasses.replace(wanted, divide_by_initial=small.divide_by_initial)
    assert shown(wanted) == "dataclasses.replace(PLAINEST, seed=7, blocks=('norm',), momentum=0.9)"


def test_errors_are_alike_where_the_same_handler_catches_them():
    ours = Outcome(failed_at=2, kinds=("MissingGradient", "ReductionError", "RuntimeError"))

    assert raises_alike(ours, Outcome(failed_at=2, kinds=("RuntimeError", "Exception")))
    assert not raises_alike(ours, Outcome(failed_at=2, kinds=("ValueError", "Exception")))
    assert not raises_alike(ours, Outcome(failed_at=1, kinds=("RuntimeError", "Exception")))
    assert not raises_alike(ours, Outcome())
