"""PostLocalSGDOptimizer and its averagers equal torch over gloo."""

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.parity.fuzz import ddp_post_local
from tests.parity.fuzz.ddp_ranks import OurRanks, TorchRanks

CASES = {
    "periodic": {"period": 3},
    "periodic-warm": {"period": 2, "warmup": 3},
    "every-step": {"period": 1, "warmup": 2},
    "subgroup": {"period": 3, "warmup": 2, "subgroup": True},
    "hierarchical": {"sizes": [(2, 2), (4, 4)], "warmup": 2},
    "hierarchical-subgroup": {"sizes": [(2, 2), (3, 4)], "warmup": 1, "subgroup": True},
    "reloaded": {"period": 3, "warmup": 2, "reload_at": 4},
    "hierarchical-reloaded": {"sizes": [(1, 1), (2, 2), (4, 4)], "reload_at": 5},
}
PLAIN = {"period": 1, "warmup": 0, "sizes": [], "subgroup": False, "steps": 8, "reload_at": -1}


@pytest.fixture(scope="module")
def both():
    torch_ranks, ours = TorchRanks(4), OurRanks(4)
    yield torch_ranks, ours
    torch_ranks.close()
    ours.close()


@pytest.mark.parametrize("name", CASES)
def test_post_local_sgd_equals_torch(both, name):
    torch_ranks, ours = both
    config = {**PLAIN, **CASES[name]}

    expected = torch_ranks.run("tests.parity.fuzz.ddp_post_local:torch_task", config)
    got = ours.run(ddp_post_local.our_task, config)

    for (theirs, their_step), (own, own_step) in zip(expected, got, strict=True):
        assert own_step == their_step
        for a, b in zip(own, theirs, strict=True):
            for x, y in zip(a, b, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
