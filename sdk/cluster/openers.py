"""Which processes callers may name beside themselves: the openers of contexts."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol, TypeAlias, final

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import DeadlineExceeded, Forbidden, ShardNotReady, Unreachable
from gradmesh.sdk.transport.call import Caller
from gradmesh.sdk.transport.deadline import Deadline

Process: TypeAlias = tuple[str, int]
"""Name and incarnation."""

# Members that work in the contexts of others, as in A → B → A.
_MAY_TAKE_PART = frozenset({"parameter-server", "trainer", "worker"})
_MAX_KNOWN = 4096
_ASK_S = 2.0


class WorkerSource(Protocol):
    """The source of registered processes: the coordinator."""

    def check_workers(self, workers: Sequence[Process], deadline: Deadline) -> list[bool]:
        """Return for each process whether it is a member, or was one."""


@final
class OpenerCheck:
    """Checks that a caller may work in a context.

    The opener of a context may. So may a server, trainer or worker, if the opener is a process that
    the coordinator has registered: an invented incarnation would fence the real process out. What
    the coordinator has confirmed is cached, as it stays true.
    """

    def __init__(self) -> None:
        self._source: WorkerSource | None = None
        self._lock = threading.Lock()  # guards changes of _known
        self._known: OrderedDict[Process, None] = OrderedDict()

    def join(self, source: WorkerSource) -> None:
        """Ask a coordinator from now on."""
        self._source = source

    def check(self, caller: Caller, context: context_pb2.ContextId, deadline: Deadline) -> None:
        """Check that a caller may work in a context.

        Raises:
            Forbidden: It is not the opener and may not take part, or the opener is unknown.
            MeshError: The coordinator does not answer.
        """
        if caller.is_authenticated:
            self._check(caller, context.worker, context.incarnation, deadline)

    def check_process(self, caller: Caller, process: Process, deadline: Deadline) -> None:
        """Check that a caller may name a process, as `check` does for the opener of a context."""
        if caller.is_authenticated:
            self._check(caller, *process, deadline)

    def _check(self, caller: Caller, name: str, incarnation: int, deadline: Deadline) -> None:
        if caller.is_process(name, incarnation):
            return
        if not caller.name or caller.member_role not in _MAY_TAKE_PART:
            raise caller.refuse_for(name, incarnation)
        if (name, incarnation) not in self._known:
            self._ask(name, incarnation, deadline)

    def _ask(self, name: str, incarnation: int, deadline: Deadline) -> None:
        if self._source is None:
            raise ShardNotReady("this process has not joined the mesh yet; ask again")
        soon = Deadline.after(min(_ASK_S, deadline.remaining_s()))
        try:
            (registered,) = self._source.check_workers([(name, incarnation)], soon)
        except (DeadlineExceeded, Unreachable) as error:
            raise ShardNotReady(
                f"this process waits for the coordinator: {error.message}"
            ) from error
        if not registered:
            raise Forbidden(
                f"no process {name!r} of incarnation {incarnation} has registered; open contexts "
                "as a member of the mesh",
                name=name,
                incarnation=incarnation,
            )
        with self._lock:
            self._known[name, incarnation] = None
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
