"""How trainers get their ranks. Pure: a generation is open, formed, or over.

A generation forms when as many trainers as expected have joined it. It is over as soon as one of
them is gone or joins again; then the next one is open. Trainers beyond the expected number wait for
that. Values published in a generation end with it.
"""

import json
from collections.abc import Mapping
from typing import final

from gradmesh.protos.errors import (
    InvalidRequest,
    KeyConflict,
    KeyMissing,
    RoundOpen,
    StaleGeneration,
    StoreFull,
)
from gradmesh.protos.naming import natural_key

MAX_KEYS = 65536
"""Values that one generation may publish: a few for each trainer of the largest group."""


@final
class Rounds:
    """The generations of trainers.

    Args:
        world_size: How many trainers form a generation.
        memory: What `remember` returned before a restart of the coordinator; empty at first.
    """

    def __init__(self, world_size: int, memory: bytes = b"") -> None:
        self.world_size = world_size
        self._forming = 1
        self._joined: dict[str, int] = {}
        self._ranks: dict[str, int] = {}
        self._keys: dict[str, bytes] = {}
        if memory:
            self._forming, self._joined = json.loads(memory)
            if len(self._joined) == world_size:
                self._form()
            elif self._joined:
                # Formed for another number of trainers: that generation is over.
                self._forming += 1
                self._joined = {}

    def remember(self) -> bytes:
        """Return what a restarted coordinator needs to go on: the number, and who is in it."""
        return json.dumps([self._forming, self._joined if self.formed else {}]).encode()

    @property
    def formed(self) -> bool:
        """Whether the current generation has its ranks."""
        return bool(self._ranks)

    @property
    def current(self) -> int:
        """The generation that is formed, or else the one that is open."""
        return self._forming

    @property
    def joined(self) -> Mapping[str, int]:
        """The incarnations of the trainers that have joined, by name."""
        return self._joined

    def join(self, name: str, incarnation: int, after_generation: int) -> bool:
        """Take a trainer into the round; return whether a new generation was formed by it.

        Raises:
            InvalidRequest: This cluster has no trainers.
        """
        if not self.world_size:
            raise InvalidRequest(
                "this cluster was started with 0 trainers; set coordinator.trainers", name=name
            )
        if self.formed:
            held = self._joined.get(name)
            if held is None or (held == incarnation and after_generation < self._forming):
                # One more than expected, or in place already.
                return False
            self.close()
        self._joined[name] = incarnation
        if len(self._joined) < self.world_size:
            return False
        self._form()
        return True

    def _form(self) -> None:
        self._ranks = {name: i for i, name in enumerate(sorted(self._joined, key=natural_key))}

    def place(self, name: str, incarnation: int) -> tuple[int, int]:
        """Return (generation, rank) of a trainer that joined.

        Raises:
            RoundOpen: Trainers are still missing.
        """
        if not self.formed or self._joined.get(name) != incarnation:
            raise RoundOpen(
                f"{len(self._joined)} of {self.world_size} trainers have joined generation "
                f"{self._forming}: {_list(self._joined)}",
                joined=len(self._joined),
                world_size=self.world_size,
            )
        return self._forming, self._ranks[name]

    def drop(self, name: str) -> bool:
        """Take a trainer out that is gone; return whether that ended a formed generation."""
        if name not in self._joined:
            return False
        ended = self.formed
        if ended:
            self.close()
        self._joined.pop(name, None)
        return ended

    def close(self) -> None:
        """End the current generation, if it is formed, and open the next."""
        if self.formed:
            self._forming += 1
            self._joined.clear()
            self._ranks.clear()
            self._keys.clear()

    def check(self, generation: int) -> None:
        """Return if the generation is formed and current.

        Raises:
            StaleGeneration: It is over.
        """
        if not self.formed or generation != self._forming:
            state = "is current" if self.formed else "is forming"
            raise StaleGeneration(
                f"generation {generation} is over, {self._forming} {state}; join again",
                generation=generation,
                current=self._forming,
            )

    def put(self, generation: int, key: str, value: bytes) -> None:
        """Publish a value to the other trainers.

        Raises:
            StaleGeneration: The generation is over.
            KeyConflict: The key holds another value.
            StoreFull: The generation has published too many.
        """
        self.check(generation)
        if len(self._keys) >= MAX_KEYS and key not in self._keys:
            raise StoreFull(
                f"generation {generation} has published {MAX_KEYS} keys already; publish fewer",
                key=key,
            )
        if self._keys.setdefault(key, value) != value:
            raise KeyConflict(
                f"key {key!r} of generation {generation} holds another value", key=key
            )

    def get(self, generation: int, key: str) -> bytes:
        """Return a published value.

        Raises:
            StaleGeneration: The generation is over.
            KeyMissing: Nobody has published it yet.
        """
        self.check(generation)
        if key not in self._keys:
            raise KeyMissing(f"key {key!r} is not published in generation {generation}", key=key)
        return self._keys[key]


def _list(joined: Mapping[str, int]) -> str:
    names = sorted(joined, key=natural_key)
    return (", ".join(names[:20]) + (" …" if len(names) > 20 else "")) or "none"
