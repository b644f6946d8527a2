"""The contexts that are open on this process, opened here or on other workers."""

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

from gradmesh.protos import limits
from gradmesh.protos.bound import Tally
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import ContextReleased, InvalidRequest
from gradmesh.protos.limits import check_name
from gradmesh.sdk.autograd.context import Context, ContextKey
from gradmesh.sdk.autograd.current import bound, current_context
from gradmesh.sdk.autograd.releaser import Releaser
from gradmesh.sdk.autograd.tombstones import ContextTombstones
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.rpc.agent import Agent


@final
class ContextRegistry:
    """Hold the open contexts by id, and tombstones of the released ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below
        self._open: dict[ContextKey, Context] = {}
        self._tombstones = ContextTombstones()
        self._opened = Tally(limits.CONTEXTS)
        self._incarnations: dict[str, int] = {}
        self._agent: Agent | None = None
        self._mesh: Mesh | None = None
        self._releaser: Releaser | None = None

    def attach(self, agent: Agent, mesh: Mesh) -> None:
        """Let contexts reach other workers through an agent from now on."""
        with self._lock:
            self._agent = agent
            self._mesh = mesh
            self._releaser = Releaser(agent)
        mesh.connection.watch_contexts(self)

    def detach(self, timeout_s: float = 2.0) -> None:
        """Send the outstanding releases to other workers, then disconnect from them."""
        with self._lock:
            releaser, self._releaser = self._releaser, None
            self._agent = self._mesh = None
            left, self._open = list(self._open.values()), {}
            self._opened.clear()
        for ctx in left:
            ctx.close()
        if releaser is not None:
            releaser.close(timeout_s)

    @property
    def agent(self) -> Agent | None:
        """The agent that reaches other workers, or None."""
        return self._agent

    def open(self, mesh: Mesh | None, mark: context_pb2.StepMark | None) -> Context:
        """Return a new context of this process.

        Raises:
            InvalidRequest: There is neither a mesh nor an agent.
        """
        if mesh is None:
            mesh = self._mesh
        if mesh is None:
            raise InvalidRequest("no mesh: pass one to context(mesh), or start an agent first")
        # A mesh beside that of the agent is another member, which cannot be called.
        agent = self._agent if mesh is self._mesh else None
        opened = Context(mesh.connection.new_context_id(), mesh, agent, mark)
        with self._lock:
            self._open[opened.key] = opened
            self._opened.add(opened.id.worker)
        return opened

    def get_or_create(
        self, id_: context_pb2.ContextId, mark: context_pb2.StepMark | None = None
    ) -> Context:
        """Return the context that a message names; the first message creates it here.

        Raises:
            ContextReleased: It was released.
            InvalidRequest: The id is not complete, or its worker has no valid name.
            LimitExceeded: The worker, or all together, have too many contexts open here.
        """
        key = (id_.worker, id_.incarnation, id_.counter)
        found = self._open.get(key)
        if found is not None:
            return found
        _check_id(id_)
        with self._lock:
            if self._tombstones.has(*key):
                raise _released(id_)
            ctx = self._open.get(key)
            if ctx is None:
                self._opened.check(id_.worker)
                ctx = self._open[key] = Context(id_, self._mesh, self._agent, mark)
                self._opened.add(id_.worker)
            known = self._note_incarnation(id_)
        if known and known < id_.incarnation:
            self.drop_worker(id_.worker, known)  # it has restarted
        return ctx

    def _note_incarnation(self, id_: context_pb2.ContextId) -> int:
        """Record the newest incarnation of a worker; return the one known before, or 0."""
        known = self._incarnations.pop(id_.worker, 0)
        self._incarnations[id_.worker] = max(known, id_.incarnation)
        if len(self._incarnations) > limits.DEDUPE_WORKERS:
            del self._incarnations[next(iter(self._incarnations))]
        return known

    def find(self, id_: context_pb2.ContextId) -> Context:
        """Return an open context.

        Raises:
            ContextReleased: It was released, or was never opened here.
        """
        found = self._open.get((id_.worker, id_.incarnation, id_.counter))
        if found is None:
            raise _released(id_)
        return found

    def gradients(self, id_: context_pb2.ContextId) -> Mapping[Any, Any]:
        """Return the gradients of this process's leaves in a context; empty if never opened here.

        Raises:
            ContextReleased: It was released.
        """
        found = self._open.get((id_.worker, id_.incarnation, id_.counter))
        if found is not None:
            return found.map
        with self._lock:
            if self._tombstones.has(id_.worker, id_.incarnation, id_.counter):
                raise _released(id_)
        return {}

    def leave(self, ctx: Context) -> None:
        """Release a context of this process here and on all participating workers."""
        workers = self._end(ctx.id)
        ctx.release_tables(shared=bool(workers))
        self._send_release(ctx.id, workers)

    def release(self, context: context_pb2.ContextId) -> bool:
        """Release a context of another process here and on the workers that got it from here.

        Raises:
            InvalidRequest: The id is not complete.
        """
        _check_id(context)
        known = (context.worker, context.incarnation, context.counter) in self._open
        # Forward the release to those workers; the context is removed first, so this terminates.
        self._send_release(context, self._end(context) - {context.worker})
        return known

    def _end(self, id_: context_pb2.ContextId) -> set[str]:
        with self._lock:
            ctx = self._open.pop((id_.worker, id_.incarnation, id_.counter), None)
            if ctx is not None:
                self._opened.remove(id_.worker)
            self._tombstones.add(id_.worker, id_.incarnation, id_.counter)
        return ctx.close() if ctx is not None else set()

    def _send_release(self, id_: context_pb2.ContextId, workers: Collection[str]) -> None:
        releaser = self._releaser
        if releaser is not None and workers:
            releaser.put(id_, workers)

    def openers(self) -> dict[tuple[str, int], int]:
        """Return the number of open contexts by the process (name, incarnation) of each opener."""
        with self._lock:
            return Counter(key[:2] for key in self._open)

    def drop_worker(self, name: str, incarnation: int) -> int:
        """Release the contexts of a lost process; return how many."""
        with self._lock:
            gone = [ctx for key, ctx in self._open.items() if key[:2] == (name, incarnation)]
        for ctx in gone:
            self.release(ctx.id)
        return len(gone)

    def open_count(self) -> int:
        """Return how many contexts are open here."""
        return len(self._open)

    def counters(self) -> dict[str, int]:
        """Return counters for `debug_info`."""
        with self._lock:
            contexts = list(self._open.values())
        return {
            "num_autograd_contexts": len(contexts),
            "num_current_backward_passes": sum(ctx.active_passes() for ctx in contexts),
        }


def _check_id(id_: context_pb2.ContextId) -> None:
    if not (id_.worker and id_.incarnation and id_.counter):
        raise InvalidRequest("the context has no worker, incarnation or counter; set all three")
    check_name("worker", id_.worker)


def _released(id_: context_pb2.ContextId) -> ContextReleased:
    name = f"{id_.worker}/{id_.incarnation}/{id_.counter}"
    return ContextReleased(f"context {name} was released; open a new one", context=name)


CONTEXTS = ContextRegistry()
"""The registry of this process."""


def context(mesh: Mesh | None = None) -> AbstractContextManager[Context]:
    """Open a context on this thread; at its end all participating processes release it.

    Args:
        mesh: The mesh it spans; by default that of this process's agent.

    Raises:
        RuntimeError: The thread has an open context already.
        InvalidRequest: There is neither a mesh nor an agent.
    """
    return _opened(mesh, None)


def step_context(mesh: Mesh, mark: context_pb2.StepMark) -> AbstractContextManager[Context]:
    """Open the context of one step of a synchronous run, as `context` does; for trainers.

    Args:
        mesh: The mesh.
        mark: Generation, rank and step number, from `Membership.mark`.
    """
    return _opened(mesh, mark)


@contextmanager
def _opened(mesh: Mesh | None, mark: context_pb2.StepMark | None) -> Iterator[Context]:
    if current_context() is not None:
        raise RuntimeError(f"this thread has an open context, {current_context()}; leave it first")
    opened = CONTEXTS.open(mesh, mark)
    try:
        with bound(opened):
            yield opened
    finally:
        CONTEXTS.leave(opened)


def find_context(name: str) -> Context:
    """Return an open context by its name, on any process that takes part in it.

    Args:
        name: The `Context.name`, perhaps of another worker.

    Raises:
        ContextReleased: It was released, or was never opened here.
        InvalidRequest: It is not the name of a context.
    """
    worker, *counts = name.rsplit("/", 2)
    if len(counts) != 2 or not worker or not all(count.isdecimal() for count in counts):
        raise InvalidRequest(f"{name!r} is not the name of a context; use Context.name")
    incarnation, counter = map(int, counts)
    return CONTEXTS.find(
        context_pb2.ContextId(worker=worker, incarnation=incarnation, counter=counter)
    )
