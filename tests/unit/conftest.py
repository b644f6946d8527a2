"""Comparing with a peer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


def _assert_parity(found: Any, expected: Any, rtol: float | None = None) -> None:
    wanted = np.asarray(expected.detach() if hasattr(expected, "detach") else expected)
    if rtol is None:
        rtol = 1e-5 if wanted.dtype == np.float32 else 1e-11
    scale = float(np.abs(wanted).max(initial=0))
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=rtol, atol=rtol / 10 * scale)


@pytest.fixture
def assert_parity() -> Callable[..., None]:
    """Compare with the peer: rtol 1e-5 for float32, 1e-11 for float64, unless given.

    An element that is a small difference of large terms is as exact as those terms: a tenth of rtol
    of the largest element is allowed besides, for float32 about eight units in its last place.
    """
    return _assert_parity
