"""Manifests are tested wherever there is a kubectl."""

import pytest

from tests.deploy.manifests import KUBECTL, NO_KUBECTL


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if KUBECTL is None:
        for item in items:
            if "tests/deploy/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason=NO_KUBECTL))
