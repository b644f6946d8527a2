from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn
from gradmesh.engine.backend import DtypeError, ShapeError

f = nn.functional


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: nn.Conv1d(3, 4, 3, groups=2), ShapeError, "2 groups"),
        (lambda: nn.Conv1d(3, 4, 3, groups=0), ShapeError, "0 groups"),
        (lambda: nn.Conv1d(3, 4, 3, padding="same", stride=2), ValueError, "stride of 1"),
        (lambda: nn.Conv2d(3, 4, 3, padding="same", stride=(1, 2)), ValueError, "stride of 1"),
        (lambda: nn.Conv1d(3, 4, 3, padding="full"), ValueError, "'full'"),
        (lambda: nn.Conv2d(3, 4, 3, padding="full"), ValueError, "'full'"),
        (lambda: nn.Conv1d(3, 4, 3)(ag.ones(2, 3, 2)), ShapeError, "kernel of 3"),
        (lambda: nn.Conv1d(3, 4, 3)(ag.ones(2, 4, 5)), ShapeError, r"\(2, 4, 5\)"),
        (lambda: nn.Conv1d(3, 4, 3)(ag.ones(1, 2, 3, 5)), ShapeError, "two axes or three"),
        (lambda: f.conv1d(ag.ones(1, 3, 5), ag.ones(4, 3, 0)), ShapeError, "not empty"),
        (lambda: f.conv1d(ag.ones(1, 3, 5), ag.ones(4, 3, 2), ag.ones(3)), ShapeError, "bias"),
        (
            lambda: f.conv1d(ag.ones(1, 3, 5), ag.ones(4, 3, 2, dtype="float64")),
            DtypeError,
            "float64",
        ),
        (lambda: f.conv1d(ag.ones(1, 3, 5), ag.ones(4, 3, 2), stride=0), ValueError, "stride 0"),
        (lambda: f.conv1d(ag.ones(1, 3, 5), ag.ones(4, 3, 2), padding=-1), ValueError, "-1"),
        (lambda: f.conv1d(ag.ones(1, 3, 5), ag.ones(4, 3, 2), dilation=0), ValueError, "n 0"),
    ],
)
def test_arguments_that_do_not_fit_are_named(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_initial_values_are_distributed_as_in_torch() -> None:
    torch = pytest.importorskip("torch")
    mine, peer = nn.Conv1d(64, 64, 5, groups=4), torch.nn.Conv1d(64, 64, 5, groups=4)
    bound = 1 / np.sqrt(16 * 5)

    for layer in (mine, peer):
        for param in (layer.weight, layer.bias):
            values = np.asarray(param.data)
            assert abs(values).max() <= bound
        assert np.asarray(layer.weight.data).std() == pytest.approx(bound / np.sqrt(3), rel=0.05)
    assert mine.stride == peer.stride == (1,)
    assert mine.dilation == peer.dilation
