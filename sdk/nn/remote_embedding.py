"""Embedding rows from the servers, as a layer of a model."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import Tensor, is_grad_enabled
from gradmesh.engine.autograd.ops import take_rows
from gradmesh.engine.nn import Module
from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.autograd.context import current_context
from gradmesh.sdk.table.lookup import Purpose, look_up
from gradmesh.sdk.table.routing import check_ids
from gradmesh.sdk.table.table import Table
from gradmesh.sdk.transport.deadline import Deadline


@final
class RemoteEmbedding(Module):
    """Looks ids up in one table a column, all tables and servers in one round.

    Inside a context the gradients of the rows go back to the servers with `autograd.backward`.
    Outside, or without gradients, rows are only read.

    Args:
        tables: One table, or one for each column of the ids; all of the same dim and type.

    Raises:
        InvalidRequest: The tables differ in dim or type.
    """

    def __init__(self, tables: Table | Sequence[Table]) -> None:
        super().__init__()
        self.tables = [tables] if isinstance(tables, Table) else list(tables)
        if len({(table.dim, table.dtype) for table in self.tables}) != 1:
            raise InvalidRequest("the tables of one layer must have the same dim and dtype")
        self.dim = self.tables[0].dim

    def forward(self, ids: Any) -> Tensor:
        """Return the rows.

        Args:
            ids: Integers; [batch] for one table, [batch, tables] for several.

        Returns:
            [batch, dim] or [batch, tables, dim].

        Raises:
            InvalidRequest: The shape does not fit the number of tables.
            IdOutOfRange: An id is no row of its table.
        """
        array = np.asarray(ids.data if isinstance(ids, Tensor) else ids)
        columns = self._columns(array)
        ctx = current_context()
        deadline = Deadline.after(self.tables[0].timeout_s)
        if ctx is None or not is_grad_enabled():
            mark_free = look_up(self.tables, columns, deadline)
            rows = Tensor(mark_free.rows)
            inverse = mark_free.route.inverse
        else:
            number = ctx.next_number()
            found = look_up(self.tables, columns, deadline, Purpose(ctx.id, number, ctx.mark))
            rows = Tensor(found.rows, requires_grad=True)
            inverse = found.route.inverse
            ctx.record(number, found, rows)
        places = inverse[0] if array.ndim == 1 else np.stack(inverse, axis=1)
        result: Tensor = take_rows(rows, places)
        return result

    def _columns(self, ids: Any) -> list[Any]:
        count = len(self.tables)
        if not (ids.ndim == 1 and count == 1) and (ids.ndim != 2 or ids.shape[1] != count):
            raise InvalidRequest(
                f"ids of shape {ids.shape} for {count} tables; expected [batch, {count}]"
            )
        columns = [ids] if ids.ndim == 1 else [ids[:, i] for i in range(count)]
        return [
            check_ids(column, table.name, table.spec.rows)
            for column, table in zip(columns, self.tables, strict=True)
        ]
