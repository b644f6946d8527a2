"""Several clients step the same parameters, none beyond the staleness bound."""

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.protos.errors import DeadlineExceeded
from tests.integration.dist_autograd import functions as f

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("dist_autograd")]


@pytest.fixture
def rrefs(world):
    return [gm.remote(f"worker{n}", f.Layer, (n,)).rpc_sync().get_w() for n in (1, 2)]


def make(rrefs, staleness, timeout_s=30.0):
    return gm.optim.DistributedOptimizer(
        gm.optim.SGD, rrefs, 0.1, mode="bounded", staleness=staleness, timeout_s=timeout_s
    )


def step_too_far(rrefs, optimizer):
    """Make a step that exceeds the bound, with a short deadline."""
    patience_s, optimizer._timeout_s = optimizer._timeout_s, 2.5
    try:
        step(rrefs, optimizer)
    finally:
        optimizer._timeout_s = patience_s


def step(rrefs, optimizer):
    with gm.autograd.context() as ctx:
        gm.autograd.backward(ctx, [sum(rref.to_here().sum() for rref in rrefs)])
        gm.step(ctx, optimizer)


def test_a_client_waits_for_the_slowest(rrefs):
    quick, slow = make(rrefs, 2), make(rrefs, 2)
    was = [rref.to_here().data for rref in rrefs]

    step(rrefs, quick)
    step(rrefs, quick)
    with pytest.raises(DeadlineExceeded, match="3 steps ahead"):
        step_too_far(rrefs, quick)
    step(rrefs, slow)
    step(rrefs, slow)
    step(rrefs, quick)

    # Every step took effect, also the one that ended with the error.
    for rref, before in zip(rrefs, was, strict=True):
        np.testing.assert_allclose(rref.to_here().data, before - 0.6, rtol=1e-4, atol=1e-5)


def test_a_waiting_client_continues_when_the_others_have_stepped(rrefs):
    patient, other = make(rrefs, 0), make(rrefs, 5)
    was = rrefs[0].to_here().data
    futures = [gm.rpc_async("worker0", f.later, (0.2,)).then(lambda _: step(rrefs, other))]

    step(rrefs, patient)

    futures[0].result(20)
    np.testing.assert_allclose(rrefs[0].to_here().data, was - 0.2, rtol=1e-4, atol=1e-6)


def test_an_ended_client_does_not_block_the_others(world, rrefs):
    quick, gone = make(rrefs, 0), make(rrefs, 0)
    del gone

    for _ in range(3):
        step(rrefs, quick)


def test_a_late_client_counts_from_where_the_slowest_is(rrefs):
    first = make(rrefs, 0)
    for _ in range(4):
        step(rrefs, first)
    late = make(rrefs, 0)

    with pytest.raises(DeadlineExceeded, match="1 steps ahead"):
        step_too_far(rrefs, first)
    step(rrefs, late)


def test_clients_of_other_parameters_do_not_count(rrefs):
    mine, other = make(rrefs[:1], 0), make(rrefs[1:], 0)

    for _ in range(3):
        step(rrefs[:1], mine)
    step(rrefs[1:], other)


@pytest.mark.parametrize(
    "options",
    [{"mode": "bounded"}, {"mode": "sync", "staleness": 1}, {"mode": "bounded", "staleness": -1}],
)
def test_invalid_options_are_refused(rrefs, options):
    with pytest.raises(ValueError, match="staleness"):
        gm.optim.DistributedOptimizer(gm.optim.SGD, rrefs, 0.1, **options)
