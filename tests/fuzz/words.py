"""The names and numbers that generated messages use, so that many of them go deep.

Everything that a message may legitimately change has a name of the fuzzer. The state that must not
change belongs to other names.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

SCRATCH = ("scratch-rows", "scratch-hash")
"""Tables that valid messages may change."""

KEPT = ("kept-rows", "kept-hash")
"""Tables that must not change; only callers that may not write name them."""

OWN = ("fuzz-0", "fuzz-1", "fuzz-2")
"""Names of members that the fuzzer may register and speak for."""

OTHERS = ("watcher", "parameter-server-0")
"""Names of members that are not the fuzzer's."""

_LABELS = ("a", "b", "fuzz-label")
_STRANGE = ("", "..", "/etc/passwd", "x" * 300, "\x1b[31m", "[/x]", "\x00", "é", "a b", "%s{0}")
_TABLE_FIELDS = frozenset({"table", "tables"})
_WORKER_FIELDS = frozenset({"worker", "name", "owner", "creator", "parent", "source"})
_RECIPES = ("sgd", "adagrad", "constant", "uniform", "lru", "ttl", "frequency", "reject", "linear")
_NUMBERS = (0, 1, 2, 3, 4, 5, 8, 16, 100, 1000)


@dataclass(frozen=True)
class Words:
    """The vocabulary of one caller.

    Args:
        tables: Names of tables.
        workers: Names of workers.
        functions: Names of registered functions and methods.
        epoch: Epoch of the shard map.
        incarnations: Incarnations that may exist.
        first: First of the few numbers that contexts and references of a batch have; other batches
            have released theirs.
    """

    tables: Sequence[str] = SCRATCH
    workers: Sequence[str] = OWN
    functions: Sequence[str] = ()
    epoch: int = 1
    incarnations: Sequence[int] = (1, 2, 2**64 - 1)
    first: int = 1

    def text(self, chance: random.Random, field: str, message: str) -> str:
        """Return a text for a field of a message type."""
        if chance.random() < 0.05:
            return chance.choice(_STRANGE)
        if field in _TABLE_FIELDS or message == "TableSpec":
            return chance.choice(self.tables)
        if message == "Recipe":
            return chance.choice(_RECIPES)
        if field == "function":
            return chance.choice(self.functions or _LABELS)
        if field == "address":
            return "127.0.0.1:1"
        if field == "owner" and message == "RemoteRef" and chance.random() < 0.9:
            return OTHERS[1]
        if field in _WORKER_FIELDS:
            return chance.choice(self.workers)
        return chance.choice(_LABELS)

    def number(self, chance: random.Random, field: str, most: int) -> int:
        """Return an integer for a field, at most `most`."""
        if field == "shard_epoch" and chance.random() < 0.9:
            return self.epoch
        if field == "incarnation":
            return chance.choice(self.incarnations) & most
        if field == "since":
            return 0
        if field == "counter" and chance.random() < 0.9:
            return self.first + chance.randrange(3)
        if chance.random() < 0.8:
            return chance.choice(_NUMBERS)
        return chance.choice((most, most - 1, most >> 1, 1 << 31, 1 << 40)) & most
