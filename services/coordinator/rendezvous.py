"""How trainers get their ranks. Pure: a generation is open, formed, or ended.

A generation forms when the expected number of trainers has joined it. With a minimum, it also forms
when that many have joined and no other joins within the window. It ends when one of its trainers is
lost or joins again, or when one more joins below the maximum; then the next generation is open. The
open generation waits for the trainers of the last one that are not lost, because they hold the
dense parameters. Trainers beyond the expected number wait, too. Published values end with their
generation.
"""

import json
from collections.abc import Mapping, Set
from typing import final

from gradmesh.protos import limits
from gradmesh.protos.bound import Tally
from gradmesh.protos.errors import (
    InvalidRequest,
    KeyConflict,
    KeyMissing,
    RoundOpen,
    StaleGeneration,
)
from gradmesh.protos.limits import natural_key


@final
class Rendezvous:
    """The generations of trainers.

    Args:
        world_size: Most trainers of a generation.
        stored: What `dump` returned before a restart of the coordinator; empty at first.
        minimum: Trainers that suffice when no other joins; 0 requires all.
        window_s: Seconds without another join before the minimum suffices.
    """

    def __init__(
        self,
        world_size: int,
        stored: bytes = b"",
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
        # Trainers of the last generation that are not lost and have not joined the open one.
        self._awaited: set[str] = set()
        self._ranks: dict[str, int] = {}
        self._keys: dict[str, bytes] = {}
        self._key_count = Tally(limits.KEYS)
        self._key_bytes = Tally(limits.KEY_BYTES)
        if stored:
            self._forming, self._joined, *rest = json.loads(stored)
            self._awaited = set(rest[0]) if rest else set()
            if self.minimum <= len(self._joined) <= world_size and self._joined:
                self._form()
            elif self._joined:
                # Formed for another number of trainers: that generation has ended.
                self._forming += 1
                self._awaited = set(self._joined)
                self._joined = {}

    def dump(self) -> bytes:
        """Return the state for the journal: the number, its trainers, the awaited ones."""
        awaited = self._awaited if self.formed else self._awaited | self._joined.keys()
        joined = self._joined if self.formed else {}
        return json.dumps([self._forming, joined, sorted(awaited)]).encode()

    @property
    def formed(self) -> bool:
        """Whether the current generation has its ranks."""
        return bool(self._ranks)

    @property
    def size(self) -> int:
        """World size of the current generation; 0 while it is open."""
        return len(self._ranks)

    @property
    def current(self) -> int:
        """Number of the formed generation, or else of the open one."""
        return self._forming

    @property
    def awaited(self) -> Set[str]:
        """Trainers of the last generation that are not lost and have not joined the open one."""
        return self._awaited

    @property
    def joined(self) -> Mapping[str, int]:
        """The incarnations of the trainers that have joined, by name."""
        return self._joined

    def join(self, name: str, incarnation: int, after_generation: int, now: float = 0.0) -> bool:
        """Add a trainer to the open generation; return whether that formed it.

        Args:
            name: Name of the trainer.
            incarnation: Incarnation of the trainer.
            after_generation: The newest generation that it was in and left; 0 at first.
            now: The time; used only with a minimum.

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
                return False  # has its rank already
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
        """Return whether joined and awaited trainers already fill the generation."""
        others = (self._joined.keys() | self._awaited) - {name}
        return len(others) >= self.world_size

    def form_after_window(self, now: float) -> bool:
        """Form the open generation if the minimum has joined and the join window has passed.

        Returns:
            Whether it was formed.
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
            RoundOpen: The generation is not formed yet.
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
        """Remove a lost trainer; return whether that ended a formed generation."""
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
            self._key_count.clear()
            self._key_bytes.clear()

    def check_invariants(self) -> None:
        """Check that the generations are consistent; for tests.

        Raises:
            AssertionError: An invariant is violated.
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
        """Raise unless the generation is formed and current.

        Raises:
            StaleGeneration: It has ended.
        """
        if not self.formed or generation != self._forming:
            state = "is current" if self.formed else "is forming"
            raise StaleGeneration(
                f"generation {generation} has ended, {self._forming} {state}; join again",
                generation=generation,
                current=self._forming,
            )

    def put(self, generation: int, key: str, value: bytes, publisher: str = "") -> None:
        """Publish a value to the other trainers.

        Args:
            generation: The generation.
            key: Name of the value.
            value: The value.
            publisher: Who publishes it; empty if that is not counted.

        Raises:
            StaleGeneration: The generation has ended.
            KeyConflict: The key holds another value.
            LimitExceeded: Too much is published in the generation.
        """
        self.check(generation)
        held = self._keys.get(key)
        if held is None:
            size = len(key) + len(value)
            self._key_count.check(publisher)
            self._key_bytes.check(publisher, size)
            self._keys[key] = value
            self._key_count.add(publisher)
            self._key_bytes.add(publisher, size)
        elif held != value:
            raise KeyConflict(
                f"key {key!r} of generation {generation} holds another value", key=key
            )

    def get(self, generation: int, key: str) -> bytes:
        """Return a published value.

        Raises:
            StaleGeneration: The generation has ended.
            KeyMissing: It is not published yet.
        """
        self.check(generation)
        if key not in self._keys:
            raise KeyMissing(f"key {key!r} is not published in generation {generation}", key=key)
        return self._keys[key]


def _list(joined: Mapping[str, int]) -> str:
    names = sorted(joined, key=natural_key)
    return (", ".join(names[:20]) + (" …" if len(names) > 20 else "")) or "none"
