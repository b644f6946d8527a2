"""Values of JSON-like documents replaced by hostile ones, and the seals that make them believed."""

from __future__ import annotations

import copy
import hashlib
import random
from typing import Any

DECOY = "decoy"
"""Name of a folder beside the one that may be read; opening a file in it is a finding."""

_HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**40, 2**63 - 1, -(2**63), 0.5, 1e308),
    *("", "..", "../" + DECOY + "/secret", "/etc/passwd", "a/../../" + DECOY + "/secret"),
    *("x" * 5000, "[/x]", "\x1b[31m", "\x00", "bfloat16", "O", "V1000000000", "<f8", "|S0"),
    *([], {}, [[]], [0] * 20, {"a": 1}),
)


def change_json(chance: random.Random, value: Any) -> Any:
    """Return a document in which one to three values are hostile, missing or repeated."""
    changed = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 2, 3))):
        changed = _change(chance, changed)
    return changed


def _change(chance: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.93:
        key = chance.choice(list(value))
        if chance.random() < 0.06:
            del value[key]
        elif chance.random() < 0.03:
            value["unknown"] = 1
        else:
            value[key] = _change(chance, value[key])
        return value
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        if chance.random() < 0.1:
            value.insert(at, copy.deepcopy(chance.choice(value)))
        elif chance.random() < 0.1:
            del value[at]
        else:
            value[at] = _change(chance, value[at])
        return value
    if isinstance(value, int) and chance.random() < 0.3:
        return value + chance.choice((-1, 1, 8, 4096))
    return copy.deepcopy(chance.choice(_HOSTILE))


def reseal(manifest: bytes) -> bytes:
    """Return the file `COMPLETE` of a manifest."""
    return f"sha256 {hashlib.sha256(manifest).hexdigest()} manifest.json\n".encode()
