"""The op suite: the cases of `cases/registry.py`, given to each test that asks for a `case`.

The same cases run as float64 gradcheck, as comparison with torch, on other memory layouts and on
the stand-in for a GPU.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from tests.unit.engine.cases.case import Case, Fixed
from tests.unit.engine.cases.registry import CASES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[c.name for c in CASES])


@pytest.fixture
def arrays(case: Case) -> list[tuple[Any, bool]]:
    """The case's inputs and whether each carries a gradient; the same on every run."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    return [(x.array, False) if isinstance(x, Fixed) else (x, True) for x in case.inputs(rng)]
