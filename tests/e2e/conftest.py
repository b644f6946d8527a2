"""Needs a container engine and the image of `make image`; `make e2e` checks both."""

import subprocess
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.e2e)
            # Each container starts an interpreter, and all of them share the machine.
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    try:
        subprocess.run(["docker", "info"], check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("NOTHING WAS TESTED: no container engine answers")
