"""A few random programs of distributed autograd agree with one process; `make fuzz-dist` runs many.

Forward values and gradients are equal bit for bit; gradients within eight rounding errors of the
largest element where calls of one context overlap.
"""

import logging

import numpy as np
import pytest

from tests.parity.fuzz.dist_draw import draw
from tests.parity.fuzz.dist_graph import Op
from tests.parity.fuzz.dist_local import Local
from tests.parity.fuzz.dist_run import covered
from tests.parity.fuzz.dist_shrink import shrink, simpler
from tests.parity.fuzz.dist_workers import WorkerFleet

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("dist_autograd")]

SEEDS = range(1000, 1030)


@pytest.fixture(scope="module")
def fleet():
    logging.getLogger("gradmesh").setLevel(logging.ERROR)
    made = WorkerFleet()
    yield made
    made.close()
    logging.getLogger("gradmesh").setLevel(logging.NOTSET)


def test_random_programs_agree_with_one_process(fleet):
    found = {seed: fleet.compare(draw(seed)) for seed in SEEDS}

    assert not {seed: texts for seed, texts in found.items() if texts}
    assert fleet.left_behind() == []


# One changes forward values, the other gradients only.
@pytest.mark.parametrize("wrong", [{"tanh": "relu"}, {"same": "detach"}])
def test_a_wrong_operation_is_found_and_shrunk(fleet, wrong):
    # The local run is wrong on purpose; the workers run the program as drawn.
    program = next(p for p in map(draw, SEEDS) if fleet.compare(p, wrong))

    small = shrink(program, lambda candidate: fleet.compare(candidate, wrong), seconds=30)

    ops = [step.name for graph in small.graphs for step in graph.steps() if isinstance(step, Op)]
    assert wrong.keys() <= set(ops)
    assert len(ops) <= 3
    assert len(str(small).splitlines()) <= 8
    assert fleet.compare(small, wrong)
    assert fleet.compare(small) == []
    assert fleet.left_behind() == []


def test_a_seed_gives_one_program_and_seeds_cover_everything():
    drawn = [draw(seed) for seed in range(300)]
    names = set().union(*map(covered, drawn))

    assert drawn == [draw(seed) for seed in range(300)]
    assert {"two contexts", "nested call", "root elsewhere", "several passes"} <= names
    assert {"fast pass", "pass that fails", "optimizer sync", "optimizer async"} <= names
    assert len([name for name in names if name.startswith("call ")]) >= 11
    assert {leaf.shape for program in drawn for leaf in program.leaves} >= {(), (0,), (0, 3)}


def test_simpler_programs_end():
    program = draw(7)
    for _ in range(1000):
        following = next(simpler(program), None)
        if following is None:
            return
        program = following
    raise AssertionError("shrinking does not end")


def test_messages_change_no_more_than_the_order_of_sums():
    for program in [p for p in map(draw, range(200)) if not p.signed]:
        with_messages, plain = Local(program).run(), Local(program, plain=True).run()
        first, other = with_messages.rounds[0][0], plain.rounds[0][0]
        assert {worker: set(own) for worker, own in first.grads.items()} == {
            worker: set(own) for worker, own in other.grads.items()
        }
        for worker, own in first.grads.items():
            for key, grad in own.items():
                np.testing.assert_allclose(grad, other.grads[worker][key], rtol=1e-5, atol=0)
