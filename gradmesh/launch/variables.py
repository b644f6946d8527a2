"""Settings as variables of the environment, for processes that start elsewhere."""

from collections.abc import Mapping
from typing import Any

from gradmesh.launch.sections import cluster_sections
from gradmesh.sdk.process.setting import settings


def variables(values: Mapping[str, Any]) -> dict[str, str]:
    """Write settings as variables.

    Args:
        values: By `section.key`; those that are None are left out, and those that nobody reads.
    """
    declared = {s.key: s.variable for section in cluster_sections() for s in settings(section)}
    return {
        declared[key]: _text(value)
        for key, value in values.items()
        if key in declared and value is not None
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return ",".join(str(item) for item in value)
    return str(value)
