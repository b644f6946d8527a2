"""The source of rows for layers: one round of requests, in the current context."""

from collections import deque
from collections.abc import Callable
from typing import final

from gradmesh.engine.autograd import Tensor, is_grad_enabled
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.autograd.context import Context
from gradmesh.sdk.autograd.current import current_context
from gradmesh.sdk.table.lookup import FetchedRows, LookupRequest, look_up
from gradmesh.sdk.table.prefetch import Prefetch
from gradmesh.sdk.table.table_set import TableSet, WantedIds
from gradmesh.sdk.transport.deadline import Deadline

# Deadline of an early refresh; later rows are refreshed in their step. One thread serves all
# layers.
_EARLY_REFRESH_S = 0.5


@final
class RowSource:
    """Rows of a set of tables, as tensors of this process; for one thread at a time.

    Args:
        tables: The tables.
        prefetch_depth: How many batches may be prefetched; 0 for none.
        gather: Adds the layer's output to prefetched rows; called on another thread.

    Raises:
        InvalidRequest: The depth is negative.
    """

    def __init__(
        self,
        tables: TableSet,
        prefetch_depth: int = 1,
        gather: Callable[[FetchedRows], FetchedRows] = lambda fetched: fetched,
    ) -> None:
        if prefetch_depth < 0:
            raise InvalidRequest(f"prefetch_depth is {prefetch_depth}; use 0 for no prefetching")
        self._tables = tables
        self._depth = prefetch_depth
        self._gather = gather
        self._prefetched: deque[Prefetch] = deque()

    def fetch(self, wanted: WantedIds) -> tuple[list[Tensor], FetchedRows]:
        """Return the distinct rows of each group of tables as tensors, and where each came from.

        Inside a context the rows' gradients go back to the servers with `autograd.backward`.
        """
        ctx = self._context()
        if ctx is None:
            fetched = look_up(self._tables, wanted, self._deadline())
        elif not is_grad_enabled():
            # Inside a run rows are as of the step, with or without gradients.
            fetched = self._look_up(wanted, LookupRequest(ctx.mark))
        else:
            fetched = self._look_up(wanted, LookupRequest(ctx.mark, ctx.id, ctx.reserve))
            return ctx.record(fetched), fetched
        return [Tensor(rows) for rows in fetched.rows], fetched

    def is_for_reading(self) -> bool:
        """Return whether rows are only read: outside any context."""
        return self._context() is None

    def prefetch(self, wanted: WantedIds) -> bool:
        """Prefetch the rows of a later batch; return whether a request was sent.

        No request is sent outside a context, nor when `prefetch_depth` batches are outstanding.
        """
        ctx = self._context()
        if ctx is None or len(self._prefetched) >= self._depth:
            return False
        # Copy: the caller may reuse the memory of the ids before they are read.
        wanted = WantedIds(wanted.ids.copy(), wanted.starts)
        prefetch = Prefetch(
            self._tables, wanted, ctx.mesh.connection.new_context_id(), self._gather
        )
        prefetch.start(ctx.mark, self._deadline())
        self._prefetched.append(prefetch)
        following = _after(ctx.mark)
        ctx.when_applied(lambda: self._refresh_early(following))
        return True

    def _refresh_early(self, step: context_pb2.StepMark | None) -> None:
        """Refresh the rows of the next batch."""
        if self._prefetched:
            within_s = min(self._tables.timeout_s, _EARLY_REFRESH_S)
            self._prefetched[0].refresh_early(step, Deadline.after(within_s))

    def discard(self) -> None:
        """Discard prefetched rows."""
        while self._prefetched:
            self._prefetched.popleft().discard()

    def _look_up(self, wanted: WantedIds, request: LookupRequest) -> FetchedRows:
        deadline = self._deadline()
        while self._prefetched:
            prefetch = self._prefetched.popleft()
            if prefetch.wanted.equals(wanted):
                fetched = prefetch.refresh(request, deadline)
                if fetched is not None:
                    return fetched
                break
            prefetch.discard()
        return look_up(self._tables, wanted, deadline, request)

    def _context(self) -> Context | None:
        ctx = current_context()
        if ctx is not None and ctx.mesh.connection.servers is not self._tables.servers:
            raise InvalidRequest(f"{ctx} spans another mesh than table {self._tables.names[0]!r}")
        return ctx

    def _deadline(self) -> Deadline:
        return Deadline.after(self._tables.timeout_s)


def _after(step: context_pb2.StepMark | None) -> context_pb2.StepMark | None:
    """Return the step that follows; None outside a run."""
    if step is None:
        return None
    return context_pb2.StepMark(generation=step.generation, step=step.step + 1, rank=step.rank)
