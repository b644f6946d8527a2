"""Where layers get rows from: one round of requests, in the context of the thread."""

from typing import final

from gradmesh.engine.autograd import Tensor, is_grad_enabled
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.sdk.autograd.context import current_context
from gradmesh.sdk.table.lookup import Purpose, look_up
from gradmesh.sdk.table.table_set import TableSet, WantedIds
from gradmesh.sdk.transport.deadline import Deadline


@final
class RowSource:
    """Rows of a set of tables, as tensors of this process.

    Args:
        tables: The tables.
    """

    def __init__(self, tables: TableSet) -> None:
        self._tables = tables

    def fetch(self, wanted: WantedIds) -> tuple[list[Tensor], Array]:
        """Return the distinct rows of each group of tables, and where each id's row stands.

        Inside a context the rows' gradients go back to the servers with `autograd.backward`.
        """
        ctx = current_context()
        deadline = Deadline.after(self._tables.timeout_s)
        if ctx is not None and ctx.mesh.servers is not self._tables.servers:
            raise InvalidRequest(f"{ctx} spans another mesh than table {self._tables.names[0]!r}")
        if ctx is None or not is_grad_enabled():
            # Inside a run rows are those of the step, whether gradients follow or not.
            found = look_up(self._tables, wanted, deadline, ctx and Purpose(ctx.mark))
            return [Tensor(rows) for rows in found.rows], found.route.inverse
        found = look_up(self._tables, wanted, deadline, Purpose(ctx.mark, ctx.id, ctx.reserve))
        tensors = [Tensor(rows, requires_grad=True) for rows in found.rows]
        ctx.record(found, tensors)
        return tensors, found.route.inverse
