"""Buffers: tensors that are state but not trained, kept equal on all ranks."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, final

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.nn import Module
from gradmesh.trainer.ddp.future import Future
from gradmesh.trainer.ddp.gradients import Gradients
from gradmesh.trainer.ddp.state_sync import broadcast_tensors
from gradmesh.trainer.process_group import ProcessGroup

BufferHook: TypeAlias = Callable[[Any, dict[str, Tensor]], Any]


class BufferHookLocation(enum.Enum):
    """When a buffer hook runs."""

    PRE_FORWARD = "pre_forward"
    POST_FORWARD = "post_forward"


@final
class Buffers:
    """Bring a module's buffers into line, by a broadcast or by the user's hook.

    Args:
        module: The module; its buffers are looked up each time, because code may rebind them.
        ignored: Names to leave alone.
    """

    def __init__(self, module: Module, ignored: Iterable[str]) -> None:
        self._module = module
        self._ignored = frozenset(ignored)
        self._hook: BufferHook | None = None
        self._state: Any = None
        self._location = BufferHookLocation.POST_FORWARD
        self._futures: list[Future] = []

    def named(self) -> dict[str, Tensor]:
        """Return the buffers by name."""
        found = self._module.named_buffers()
        return {name: buffer for name, buffer in found if name not in self._ignored}

    def set_hook(self, state: Any, hook: BufferHook, location: BufferHookLocation) -> None:
        """Let a hook take the place of the broadcast."""
        if not callable(hook):
            raise TypeError(f"a buffer hook must be callable, not {type(hook).__name__}")
        self._state, self._hook, self._location = state, hook, BufferHookLocation(location)

    def before_forward(self, group: ProcessGroup, root: int) -> None:
        """Broadcast from one rank, or run a hook of this place; collective."""
        if self._hook is None:
            broadcast_tensors(group, list(self.named().values()), root, is_change=False)
        elif self._location is BufferHookLocation.PRE_FORWARD:
            self._run()

    def after_forward(self) -> None:
        """Run a hook of this place."""
        if self._hook is not None and self._location is BufferHookLocation.POST_FORWARD:
            self._run()

    def wait(self) -> None:
        """Wait for the futures that the hook has returned."""
        futures, self._futures = self._futures, []
        for future in futures:
            future.wait()

    def wait_after(self, _: Gradients) -> None:
        """Wait at the end of a backward pass."""
        self.wait()

    def _run(self) -> None:
        assert self._hook is not None
        made = self._hook(self._state, self.named())
        if made is None:
            return
        futures = [made] if isinstance(made, Future) else list(made)
        for future in futures:
            if not isinstance(future, Future):
                raise TypeError(
                    f"a buffer hook returned {type(future).__name__}; return a Future, a list of"
                    " them, or None"
                )
        self._futures += futures
