"""Where layers get rows from: one round of requests, in the context of the thread."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, final

from gradmesh.engine.autograd import Tensor, is_grad_enabled
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.sdk.autograd.binding import current_context
from gradmesh.sdk.autograd.context import Context
from gradmesh.sdk.table.lookup import Lookup, Purpose, look_up
from gradmesh.sdk.table.prefetch import Fetched, LaidOut, Prefetched
from gradmesh.sdk.table.table_set import TableSet, WantedIds
from gradmesh.sdk.transport.deadline import Deadline

# What is not there soon comes when it is needed: the thread that waits has others to wait for.
_PEEK_S = 0.5


class Rows(NamedTuple):
    """Rows for a layer.

    Args:
        groups: The distinct rows of each group of tables.
        inverse: Where each id's row stands in its group, int64 [n].
        laid_out: What the layer makes of them, where that was done ahead.
    """

    groups: list[Tensor]
    inverse: Array
    laid_out: LaidOut | None


@final
class RowSource:
    """Rows of a set of tables, as tensors of this process; for one thread at a time.

    Args:
        tables: The tables.
        prefetch_depth: How many batches may be fetched ahead; 0 for none.
        lay_out: Makes of rows what the layer returns; called by another thread, for rows that are
            fetched ahead.

    Raises:
        InvalidRequest: The depth is negative.
    """

    def __init__(
        self,
        tables: TableSet,
        prefetch_depth: int = 1,
        lay_out: Callable[[Lookup], LaidOut] | None = None,
    ) -> None:
        if prefetch_depth < 0:
            raise InvalidRequest(f"prefetch_depth is {prefetch_depth}; use 0 for no prefetching")
        self._tables = tables
        self._depth = prefetch_depth
        self._lay_out = lay_out
        self._ahead: deque[Prefetched] = deque()

    def fetch(self, wanted: WantedIds) -> Rows:
        """Return the distinct rows of each group of tables, and where each id's row stands.

        Inside a context the rows' gradients go back to the servers with `autograd.backward`.
        """
        ctx = self._context()
        if ctx is None:
            found = Fetched(look_up(self._tables, wanted, self._deadline()))
        elif not is_grad_enabled():
            # Inside a run rows are those of the step, whether gradients follow or not.
            found = self._look_up(wanted, Purpose(ctx.mark))
        else:
            found = self._look_up(wanted, Purpose(ctx.mark, ctx.id, ctx.reserve))
            return Rows(ctx.record(found.lookup), found.lookup.route.inverse, found.laid_out)
        groups = [Tensor(rows) for rows in found.lookup.rows]
        return Rows(groups, found.lookup.route.inverse, found.laid_out)

    def is_for_reading(self) -> bool:
        """Tell whether rows are only read now: outside any context, hence as they are."""
        return self._context() is None

    def prefetch(self, wanted: WantedIds) -> bool:
        """Ask for the rows of a later batch; return whether a request went out.

        None does outside a context, nor when as many batches as the depth are waiting.
        """
        ctx = self._context()
        if ctx is None or len(self._ahead) >= self._depth:
            return False
        # The caller may put the next ids into the same memory before these are read.
        wanted = WantedIds(wanted.ids.copy(), wanted.starts)
        context = ctx.mesh.new_context_id()
        self._ahead.append(
            Prefetched(self._tables, wanted, context, ctx.mark, self._deadline(), self._lay_out)
        )
        following = _after(ctx.mark)
        ctx.when_applied(lambda: self._peek(following))
        return True

    def _peek(self, mark: context_pb2.StepMark | None) -> None:
        """Have the rows of the batch that comes next brought up to date."""
        if self._ahead:
            within_s = min(self._tables.timeout_s, _PEEK_S)
            self._ahead[0].peek(mark, Deadline.after(within_s))

    def discard(self) -> None:
        """Forget what was fetched ahead."""
        while self._ahead:
            self._ahead.popleft().discard()

    def _look_up(self, wanted: WantedIds, purpose: Purpose) -> Fetched:
        deadline = self._deadline()
        while self._ahead:
            ahead = self._ahead.popleft()
            if ahead.wanted.equals(wanted):
                found = ahead.refresh(purpose, deadline)
                if found is not None:
                    return found
                break
            ahead.discard()
        return Fetched(look_up(self._tables, wanted, deadline, purpose))

    def _context(self) -> Context | None:
        ctx = current_context()
        if ctx is not None and ctx.mesh.servers is not self._tables.servers:
            raise InvalidRequest(f"{ctx} spans another mesh than table {self._tables.names[0]!r}")
        return ctx

    def _deadline(self) -> Deadline:
        return Deadline.after(self._tables.timeout_s)


def _after(mark: context_pb2.StepMark | None) -> context_pb2.StepMark | None:
    """Return the mark of the step that follows; None outside a run."""
    if mark is None:
        return None
    return context_pb2.StepMark(generation=mark.generation, step=mark.step + 1, rank=mark.rank)
