"""How trainers get their ranks. Pure: a generation is open, formed, or over.

A generation forms when as many trainers as expected have joined it; with a minimum also when that
many have, and nobody else came for a while. It is over as soon as one of them is gone or joins
again, or one more comes that there is room for; then the next one is open. It waits for whoever
was in the last one and is not gone: they have what the others need. Trainers beyond the expected
number wait, too. Values published in a generation end with it.
"""

import json
from collections.abc import Mapping, Set
from typing import final

from gradmesh.protos.errors import (
    InvalidRequest,
    KeyConflict,
    KeyMissing,
    RoundOpen,
    StaleGeneration,
    StoreFull,
)
from gradmesh.protos.limits import natural_key

MAX_KEYS = 65536
"""Values that one generation may publish: a few for each trainer of the largest group."""


@final
class Rendezvous:
    """The generations of trainers.

    Args:
        world_size: How many trainers form a generation, at most.
        memory: What `dump` returned before a restart of the coordinator; empty at first.
        minimum: How many do when nobody else comes; 0 for no fewer than all.
        window_s: For how long nobody else must have come.
    """

    def __init__(
        self,
        world_size: int,
        memory: bytes = b"",
        *,
        minimum: int = 0,
        window_s: float = 3.0,
    ) -> None:
        self.world_size = world_size
        self.minimum = minimum or world_size
        self._window_s = window_s
        self._joined_at = 0.0
        self._forming = 1
        self._joined: dict[str, int] = {}
        # Who was in the last generation, is not gone, and has not joined the open one yet.
        self._awaited: set[str] = set()
        self._ranks: dict[str, int] = {}
        self._keys: dict[str, bytes] = {}
        if memory:
            self._forming, self._joined, *rest = json.loads(memory)
            self._awaited = set(rest[0]) if rest else set()
            if self.minimum <= len(self._joined) <= world_size and self._joined:
                self._form()
            elif self._joined:
                # Formed for another number of trainers: that generation is over.
                self._forming += 1
                self._awaited = set(self._joined)
                self._joined = {}

    def dump(self) -> bytes:
        """Return what a restarted coordinator needs: the number, who is in it, who is awaited."""
        awaited = self._awaited if self.formed else self._awaited | self._joined.keys()
        joined = self._joined if self.formed else {}
        return json.dumps([self._forming, joined, sorted(awaited)]).encode()

    @property
    def formed(self) -> bool:
        """Whether the current generation has its ranks."""
        return bool(self._ranks)

    @property
    def size(self) -> int:
        """How many trainers the current generation has; 0 while it is open."""
        return len(self._ranks)

    @property
    def current(self) -> int:
        """The generation that is formed, or else the one that is open."""
        return self._forming

    @property
    def awaited(self) -> Set[str]:
        """Who was in the last generation, is not gone, and has not joined the open one."""
        return self._awaited

    @property
    def joined(self) -> Mapping[str, int]:
        """The incarnations of the trainers that have joined, by name."""
        return self._joined

    def join(self, name: str, incarnation: int, after_generation: int, now: float = 0.0) -> bool:
        """Take a trainer into the round; return whether a new generation was formed by it.

        Args:
            name: Of the trainer.
            incarnation: Of the trainer.
            after_generation: The newest one that it took part in and left; 0 at first.
            now: The time; matters only with a minimum.

        Raises:
            InvalidRequest: This cluster has no trainers.
        """
        if not self.world_size:
            raise InvalidRequest(
                "this cluster was started with 0 trainers; set coordinator.trainers", name=name
            )
        if self.formed:
            held = self._joined.get(name)
            if held == incarnation and after_generation < self._forming:
                return False  # in place already
            if held is None and len(self._joined) >= self.world_size:
                return False  # one more than expected
            self.close()
        elif self._is_full_for(name):
            return False
        if self._joined.get(name) != incarnation:
            self._joined_at = now
        self._joined[name] = incarnation
        self._awaited.discard(name)
        if len(self._joined) < self.world_size:
            return False
        self._form()
        return True

    def _is_full_for(self, name: str) -> bool:
        """Tell whether all places are taken by others, or kept for those who are awaited."""
        others = (self._joined.keys() | self._awaited) - {name}
        return len(others) >= self.world_size

    def form_after_window(self, now: float) -> bool:
        """Form a generation of those who have come, if that is enough and nobody else does.

        Returns:
            Whether one was formed.
        """
        enough = self.minimum <= len(self._joined) and bool(self._joined)
        if self.formed or not enough or self._awaited or now - self._joined_at < self._window_s:
            return False
        self._form()
        return True

    def _form(self) -> None:
        self._ranks = {name: i for i, name in enumerate(sorted(self._joined, key=natural_key))}

    def rank_of(self, name: str, incarnation: int) -> tuple[int, int]:
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
        self._awaited.discard(name)
        if name not in self._joined:
            return False
        ended = self.formed
        if ended:
            self.close()
            self._awaited.discard(name)
        self._joined.pop(name, None)
        return ended

    def close(self) -> None:
        """End the current generation, if it is formed, and open the next."""
        if self.formed:
            self._forming += 1
            self._awaited |= self._joined.keys()
            self._joined.clear()
            self._ranks.clear()
            self._keys.clear()

    def check_invariants(self) -> None:
        """Return if the rounds are consistent; for tests.

        Raises:
            AssertionError: They are not.
        """
        assert self._forming >= 1
        if self.formed:
            assert self.minimum <= len(self._joined) <= self.world_size
            assert self._ranks.keys() == self._joined.keys()
            assert sorted(self._ranks.values()) == list(range(len(self._ranks)))
            assert not self._awaited
        else:
            assert not self._awaited & self._joined.keys()
            assert not self._ranks
            assert not self._keys
            assert len(self._joined) < max(1, self.world_size)

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
