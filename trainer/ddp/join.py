"""Join: ranks whose inputs have ended keep taking part until the last rank is done.

In each iteration all ranks all-reduce a small array that says which ranks are active and what they
are about to do. A rank whose inputs have ended contributes zeros and mirrors the others.
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
from gradmesh.trainer.ddp.agreement import to_group_memory
from gradmesh.trainer.errors import CollectiveMismatch, InputsExhausted
from gradmesh.trainer.process_group import ProcessGroup

_log = logging.getLogger(__name__)
_WARN_AFTER = 1000


class Intent(enum.IntFlag):
    """What a rank is about to do in an iteration; 0 means that its inputs have ended."""

    ACTIVE = 1
    SYNC_GRADIENTS = 2
    SYNC_BUFFERS = 4


@final
@dataclass(frozen=True, slots=True)
class JoinIteration:
    """The intents of all ranks in one iteration."""

    intents: tuple[Intent, ...]
    """By rank."""

    @property
    def active(self) -> tuple[int, ...]:
        """The ranks that have inputs."""
        return tuple(rank for rank, intent in enumerate(self.intents) if intent)

    @property
    def intent(self) -> Intent:
        """The common intent of the active ranks.

        Raises:
            CollectiveMismatch: Their intents differ; raised on all ranks.
        """
        distinct = {self.intents[rank] for rank in self.active}
        if len(distinct) > 1:
            listed = ", ".join(f"rank {rank}: {self.intents[rank]!s}" for rank in self.active)
            raise CollectiveMismatch(
                f"ranks differ in what they synchronise ({listed}); use no_sync on all or none"
            )
        return distinct.pop() if distinct else Intent(0)


class JoinHook:
    """The actions of a joinable on a rank whose inputs have ended."""

    def main_hook(self, iteration: JoinIteration) -> None:
        """Mirror the collectives of one iteration of the active ranks."""

    def post_hook(self, last: JoinIteration) -> None:
        """Run on every rank when all have joined; `last` is the last active iteration."""


class Joinable(ABC):
    """Base of classes whose iterations run collectives; each MUST call `announce`."""

    _join: Join | None = None

    @abstractmethod
    def join_hook(self, **options: Any) -> JoinHook:
        """Return the hook for ranks whose inputs have ended; called on entry to the context."""

    @property
    @abstractmethod
    def join_process_group(self) -> ProcessGroup:
        """The ranks."""


@final
class Join:
    """A context in which ranks may have different numbers of inputs.

    Args:
        joinables: What runs inside; all have the same process group.
        enable: Whether to join; the context does nothing otherwise.
        throw_on_early_termination: Raise InputsExhausted on all ranks as soon as the inputs of one
            have ended, instead of continuing without it.
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
        self._last: dict[int, JoinIteration] = {}

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
            self._mirror()
            for joinable, hook in zip(self._joinables, self._hooks, strict=True):
                last = self._last.get(id(joinable))
                if last is not None:
                    hook.post_hook(last)

    def announce(self, joinable: Joinable, intent: Intent) -> JoinIteration:
        """Exchange what the ranks are about to do; collective.

        Raises:
            InputsExhausted: The inputs of a rank have ended and all ranks must stop; raised on all
                ranks.
        """
        group = joinable.join_process_group
        own = np.zeros(group.size, np.int32)
        own[group.rank] = int(intent)
        shared = to_group_memory(group, own)
        group.all_reduce(shared).wait()
        iteration = JoinIteration(tuple(Intent(int(word)) for word in to_numpy(shared)))
        if iteration.active:
            self._last[id(joinable)] = iteration
            if self._throw and len(iteration.active) < group.size:
                done = sorted(set(range(group.size)).difference(iteration.active))
                raise InputsExhausted(
                    f"rank {', '.join(map(str, done))} has no inputs left; all ranks stop, as"
                    " throw_on_early_termination asks"
                )
        return iteration

    def _mirror(self) -> None:
        """Mirror the active ranks until there are none."""
        iterations = 0
        while True:
            for index, (joinable, hook) in enumerate(
                zip(self._joinables, self._hooks, strict=True)
            ):
                iteration = self.announce(joinable, Intent(0))
                if index == 0 and not iteration.active:
                    return
                hook.main_hook(iteration)
            iterations += 1
            if iterations == _WARN_AFTER:
                _log.warning(
                    "a rank has waited long for the others' inputs",
                    extra={"iterations": iterations, "active": iteration.active},
                )
