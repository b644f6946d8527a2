"""Join: ranks whose inputs end early go on taking part until the last one is done.

In each iteration every rank tells the others, in one small sum, whether it is still active and
what it is about to do. A rank without inputs answers with zeros and mirrors what the others do.
"""

from __future__ import annotations

import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, final

import numpy as np

from gradmesh.engine.backend import to_numpy
from gradmesh.trainer.ddp.exchange import on_group
from gradmesh.trainer.errors import CollectiveMismatch, InputsExhausted
from gradmesh.trainer.process_group import ProcessGroup

_log = logging.getLogger(__name__)
_WARN_AFTER = 1000


class Intent(enum.IntFlag):
    """What a rank is about to do in an iteration; none means that it has no inputs left."""

    ACTIVE = 1
    SYNC_GRADIENTS = 2
    SYNC_BUFFERS = 4


@final
@dataclass(frozen=True, slots=True)
class Round:
    """What all ranks said in one iteration."""

    intents: tuple[Intent, ...]
    """By rank."""

    @property
    def active(self) -> tuple[int, ...]:
        """The ranks that have inputs."""
        return tuple(rank for rank, intent in enumerate(self.intents) if intent)

    @property
    def intent(self) -> Intent:
        """What the active ranks do.

        Raises:
            CollectiveMismatch: They do different things; raised on all ranks.
        """
        said = {self.intents[rank] for rank in self.active}
        if len(said) > 1:
            listed = ", ".join(f"rank {rank}: {self.intents[rank]!s}" for rank in self.active)
            raise CollectiveMismatch(
                f"ranks differ in what they synchronise ({listed}); use no_sync on all or none"
            )
        return said.pop() if said else Intent(0)


class JoinHook:
    """What a joinable does on a rank without inputs."""

    def main_hook(self, round_: Round) -> None:
        """Mirror the collectives of one iteration of the active ranks."""

    def post_hook(self, last: Round) -> None:
        """Run on every rank when all have joined; `last` is the last round with active ranks."""


class Joinable(ABC):
    """Something whose iterations have collectives; it MUST call `announce` in each."""

    _join: Join | None = None

    @abstractmethod
    def join_hook(self, **options: Any) -> JoinHook:
        """Return what to do on ranks without inputs; called when the context is entered."""

    @property
    @abstractmethod
    def join_process_group(self) -> ProcessGroup:
        """The ranks."""


@final
class Join:
    """A context in which ranks may have different numbers of inputs.

    Args:
        joinables: What runs inside; all with the same process group.
        enable: Whether to do anything.
        throw_on_early_termination: Raise InputsExhausted on all ranks as soon as one has no inputs
            left, instead of going on without it.
        options: Passed to each `join_hook`.

    Raises:
        ValueError: If there are no joinables or their groups differ.
    """

    def __init__(
        self,
        joinables: Sequence[Joinable],
        enable: bool = True,
        throw_on_early_termination: bool = False,
        **options: Any,
    ) -> None:
        if not joinables:
            raise ValueError("Join needs at least one joinable")
        groups = {id(joinable.join_process_group) for joinable in joinables}
        if len(groups) > 1:
            raise ValueError("all joinables of one Join must have the same process group")
        self._joinables = list(joinables)
        self._enable = enable
        self._throw = throw_on_early_termination
        self._options = options
        self._last: dict[int, Round] = {}

    def __enter__(self) -> Self:
        if self._enable:
            self._hooks = [j.join_hook(**self._options) for j in self._joinables]
            for joinable in self._joinables:
                joinable._join = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._enable:
            return
        for joinable in self._joinables:
            joinable._join = None
        if kind is None:
            self._shadow()
            for joinable, hook in zip(self._joinables, self._hooks, strict=True):
                last = self._last.get(id(joinable))
                if last is not None:
                    hook.post_hook(last)

    def announce(self, joinable: Joinable, intent: Intent) -> Round:
        """Tell the ranks what this one is about to do, and hear the same of them; collective.

        Raises:
            InputsExhausted: A rank has no inputs left and all shall stop; raised on all ranks.
        """
        group = joinable.join_process_group
        said = np.zeros(group.size, np.int32)
        said[group.rank] = int(intent)
        shared = on_group(group, said)
        group.all_reduce(shared).wait()
        heard = Round(tuple(Intent(int(word)) for word in to_numpy(shared)))
        if heard.active:
            self._last[id(joinable)] = heard
            if self._throw and len(heard.active) < group.size:
                done = sorted(set(range(group.size)).difference(heard.active))
                raise InputsExhausted(
                    f"rank {', '.join(map(str, done))} has no inputs left; all ranks stop, as"
                    " throw_on_early_termination asks"
                )
        return heard

    def _shadow(self) -> None:
        """Mirror the active ranks until there are none."""
        rounds = 0
        while True:
            for place, (joinable, hook) in enumerate(
                zip(self._joinables, self._hooks, strict=True)
            ):
                heard = self.announce(joinable, Intent(0))
                if place == 0 and not heard.active:
                    return
                hook.main_hook(heard)
            rounds += 1
            if rounds == _WARN_AFTER:
                _log.warning(
                    "a rank has waited long for the others' inputs",
                    extra={"iterations": rounds, "active": heard.active},
                )
