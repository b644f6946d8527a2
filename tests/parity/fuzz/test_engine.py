"""The fuzzer of the engine: a few of its seeds, its generators, and that it finds and shrinks."""

import pathlib
import re
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import gradmesh as gm
from tests.parity.fuzz import generate as generate_module
from tests.parity.fuzz import optimizer, schedule
from tests.parity.fuzz.cases import check, report_of
from tests.parity.fuzz.compare import compared
from tests.parity.fuzz.generate import generate
from tests.parity.fuzz.graph import Graph, Leaf, Node, Ref
from tests.parity.fuzz.known_differences import KNOWN
from tests.parity.fuzz.names import EXEMPT, public_names
from tests.parity.fuzz.template import OPS

SEEDS = range(600)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch use one thread: its graphs are small, and more would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")
def test_random_graphs_agree_with_torch() -> None:
    with np.errstate(all="ignore"):
        found = {seed: verdict for seed in SEEDS if (verdict := check(seed)).cluster is not None}
    assert not found, "\n".join(found[seed].report()[1] for seed in list(found)[:3])


def covered() -> set[str]:
    names = {name for op in OPS.values() for name in op.covers}
    names |= {f"optim.{name}" for name in optimizer.OPTIONS}
    return names | {f"lr_scheduler.{name}" for name in schedule.OPTIONS}


def test_every_public_name_has_a_generator_or_a_reason() -> None:
    assert generate_module.catalogue
    missing = public_names(gm) - covered() - set(EXEMPT)
    assert not missing, f"no generator in tests/parity/fuzz/catalogue for {sorted(missing)}"


def test_reasons_are_for_names_that_need_one() -> None:
    assert set(EXEMPT) <= public_names(gm)
    assert not set(EXEMPT) & covered()


def test_a_seed_gives_one_graph() -> None:
    for seed in range(40, 60):
        first, second = generate(seed)[0], generate(seed)[0]
        assert first.ops() == second.ops()
        assert first.roots == second.roots


def test_a_fault_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give our side a wrong sine, deep inside a graph, and see that two lines of it are left."""
    wrong = OPS["x.sin"].__class__(**{**vars(OPS["x.sin"]), "call": lambda t, f, n, a, x: x.cos()})
    monkeypatch.setitem(OPS, "x.sin", wrong)
    values = np.random.default_rng(0).standard_normal((3, 4))
    graph = Graph(
        [
            Leaf(values, ("permuted", (1, 0)), requires_grad=True),
            Leaf(values.copy()),
            Node("mul", {"x": Ref(0), "y": Ref(1)}),
            Node("x.sin", {"x": Ref(2)}),
            Node("add", {"x": Ref(3), "y": 2}),
        ],
        roots=[Ref(4)],
    )

    difference = compared(graph)[0]
    assert (difference.kind, difference.op) == ("value", "x.sin")
    cluster, text = report_of(graph, ("value", "x.sin"))

    assert cluster == ("value", "x.sin")
    assert len(re.findall(r"^ +x\d+ = ", text, re.M)) == 2
    assert "x1 = x0.sin()" in text


def test_known_differences_are_those_of_the_docs() -> None:
    text = (pathlib.Path(__file__).parents[3] / "docs/engine.md").read_text()
    table = text.split("| known difference | what differs |\n|---|---|\n")[1].split("\n\n")[0]

    assert table.splitlines() == [f"| `{known.name}` | {known.reason} |" for known in KNOWN]
