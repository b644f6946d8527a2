"""How trainers get their ranks. Pure: a generation is open, formed, or over.

A generation forms when as many trainers as expected have joined it. It is over as soon as one of
them is gone or joins again; then the next one is open. Values published in a generation end with
it.
"""

import json
from typing import final

from gradmesh.protos.errors import KeyConflict, KeyMissing, RoundOpen, StaleGeneration
from gradmesh.protos.naming import natural_key


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
            else:
                self._forming += 1
                self._joined = {}

    def remember(self) -> bytes:
        """Return what a restarted coordinator needs to go on with a formed generation."""
        return json.dumps([self._forming, self._joined]).encode()

    @property
    def formed(self) -> bool:
        """Whether the current generation has its ranks."""
        return bool(self._ranks)

    @property
    def current(self) -> int:
        """The generation that is formed, or else the one that is open."""
        return self._forming

    def join(self, name: str, incarnation: int, after_generation: int) -> bool:
        """Take a trainer into the round; return whether a new generation was formed by it."""
        if self.formed:
            stays = self._joined.get(name) == incarnation and after_generation < self._forming
            if stays:
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
                f"{self._forming}: {', '.join(sorted(self._joined, key=natural_key)) or 'none'}",
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
            raise StaleGeneration(
                f"generation {generation} is over, {self._forming} is current; join again",
                generation=generation,
                current=self._forming,
            )

    def put(self, generation: int, key: str, value: bytes) -> None:
        """Publish a value to the other trainers.

        Raises:
            StaleGeneration: The generation is over.
            KeyConflict: The key holds another value.
        """
        self.check(generation)
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
