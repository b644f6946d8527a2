"""The ways to change an object: merge patch, strategic merge patch, JSON patch, apply."""

import copy
from typing import Any

# Lists of maps are merged by one of these, as the API's own schemas say.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "conditions": "type",
}


def merge(old: Any, new: Any) -> Any:
    """RFC 7386."""
    if not isinstance(new, dict):
        return copy.deepcopy(new)
    made = copy.deepcopy(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merge(made.get(key), value)
    return made


def strategic(old: Any, new: Any) -> Any:
    """Merge patch, but lists of named things are merged by name."""
    if not isinstance(new, dict):
        return copy.deepcopy(new)
    made = copy.deepcopy(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if key.startswith("$"):
            continue
        if value is None:
            made.pop(key, None)
        elif isinstance(value, list) and key in _KEYS and isinstance(made.get(key), list):
            made[key] = _by_key(made[key], value, _KEYS[key])
        else:
            made[key] = strategic(made.get(key), value)
    return made


def _by_key(old: list[Any], new: list[Any], key: str) -> list[Any]:
    made = {item[key]: item for item in old}
    for item in new:
        if item.get("$patch") == "delete":
            made.pop(item[key], None)
        else:
            made[item[key]] = strategic(made.get(item[key]), item)
    return list(made.values())


def json_patch(old: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902, the operations that are used here."""
    made = copy.deepcopy(old)
    for operation in operations:
        *path, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        ]
        target = made
        for part in path:
            target = target[int(part) if isinstance(target, list) else part]
        if operation["op"] == "remove":
            del target[int(last) if isinstance(target, list) else last]
        elif isinstance(target, list) and operation["op"] == "add":
            target.insert(len(target) if last == "-" else int(last), operation["value"])
        else:
            target[int(last) if isinstance(target, list) else last] = operation["value"]
    return made


def patched(kind: str, old: Any, new: Any) -> Any:
    """Return an object after a patch of a content type."""
    if kind.startswith("application/json-patch"):
        return json_patch(old, new)
    if kind.startswith("application/merge-patch"):
        return merge(old, new)
    return strategic(old, new)
