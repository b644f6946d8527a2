import itertools

import numpy as np
import pytest

from gradmesh.protos.errors import InvalidRequest, StaleGeneration, StepPending
from gradmesh.services.parameter_server.open_context import Gradient
from gradmesh.services.parameter_server.run import MAX_STEPS_AHEAD, Run, average, merge


def gradient(slots, values, table="t"):
    rows = np.array(values, np.float32).reshape(len(slots), -1)
    return Gradient(table, np.array(slots, np.int64), rows)


def by_slot(gradient):
    return dict(zip(gradient.slots.tolist(), gradient.rows[:, 0].tolist(), strict=True))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_step_is_merged_in_rank_order_in_any_order_of_arrival(make, order):
    # 1e8 + 1 - 1e8 is 0 in this order and 1 in another: the sum shows the order of addition.
    values = [[1e8], [1.0], [-1e8]]
    run = Run(1, 3)

    for rank in order:
        assert run.prepare() is None
        run.stage(make.mark(0, rank), [gradient([7], values[rank])])
    (merged,) = run.prepare()
    prepared = run.applied_steps, run.prepared_steps
    run.commit()

    assert by_slot(merged) == {7: 0.0}
    assert prepared == (0, 1)
    assert (run.applied_steps, run.prepared_steps) == (1, 1)


def test_steps_are_taken_in_order(make):
    run = Run(1, 1)
    run.stage(make.mark(1), [gradient([1], [1.0])])
    run.stage(make.mark(2), [gradient([2], [2.0])])

    early = run.prepare()
    run.stage(make.mark(0), [gradient([0], [0.0])])
    taken = []
    while (complete := run.prepare()) is not None:
        taken.append(complete[0].slots.tolist())
        assert run.prepare() is None  # one at a time
        run.commit()

    assert early is None
    assert taken == [[0], [1], [2]]
    assert run.applied_steps == 3


def test_a_repeated_contribution_is_recognised_before_and_after_its_step(make):
    run = Run(1, 2)

    before = run.has(make.mark(0, 0))
    run.stage(make.mark(0, 0), [])
    staged = run.has(make.mark(0, 0)), run.has(make.mark(0, 1))
    run.stage(make.mark(0, 1), [])
    run.prepare()

    assert not before
    assert staged == (True, False)
    assert run.has(make.mark(0, 1))


def test_with_staleness_each_rank_has_its_own_steps(make):
    run = Run(1, 2, staleness=2)

    may = [run.may_begin(make.mark(step, 0)) for step in range(4)]
    run.advance(0, 3)
    ahead = run.lag_steps, run.applied_steps, run.has(make.mark(2, 0)), run.has(make.mark(0, 1))
    run.advance(1, 1)

    assert may == [True, True, True, False]
    assert ahead == (3, 0, True, False)
    assert run.may_begin(make.mark(3, 0))
    assert not run.may_begin(make.mark(4, 0))


def test_marks_of_others_are_refused(make):
    run = Run(3, 2)
    run.check(make.mark(0, 1, generation=3))

    with pytest.raises(StaleGeneration, match="generation 2 does not run here, 3 does"):
        run.check(make.mark(0, 0, generation=2))
    with pytest.raises(StaleGeneration, match="none does"):
        Run().check(make.mark(0, 0, generation=2))
    with pytest.raises(InvalidRequest, match="rank 2 of 2"):
        run.check(make.mark(0, 2, generation=3))
    with pytest.raises(InvalidRequest):
        Run().check(make.mark(0, 0, generation=0))


def test_no_client_runs_far_ahead(make):
    run = Run(1, 2)
    run.check_ahead(make.mark(MAX_STEPS_AHEAD - 1))

    with pytest.raises(StepPending, match="0 steps are applied"):
        run.check_ahead(make.mark(MAX_STEPS_AHEAD))


def test_the_mean_counts_ranks_without_a_row():
    first, second = gradient([1, 2], [3.0, 5.0]), gradient([2], [1.0])

    (mean,) = average([[first], [second]])

    assert by_slot(mean) == {1: 1.5, 2: 3.0}


def test_one_rank_is_passed_on_as_it_is():
    only = gradient([1], [3.0])

    (mean,) = average([[only]])

    assert mean is only


def test_repeated_rows_add_up_table_by_table():
    parts = [gradient([1, 2], [1, 2]), gradient([1], [9], "u"), gradient([2, 3], [10, 20])]

    first, second = merge(parts)

    assert (first.table, by_slot(first)) == ("t", {1: 1, 2: 12, 3: 20})
    assert (second.table, by_slot(second)) == ("u", {1: 9})


def test_merging_nothing_returns_nothing(make):
    run = Run(1, 2)
    run.stage(make.mark(0, 0), [])
    run.stage(make.mark(0, 1), [])

    assert run.prepare() == []
