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
        if not self.tables:
            raise InvalidRequest("a layer needs at least one table")
        if len({(table.dim, table.dtype, id(table.servers)) for table in self.tables}) != 1:
            names = ", ".join(f"{t.name} ({t.dim}, {t.dtype})" for t in self.tables)
            raise InvalidRequest(
                "the tables of one layer must have the same dim and dtype and come from one mesh: "
                f"{names}"
            )
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
        if ctx is not None and ctx.mesh.servers is not self.tables[0].servers:
            raise InvalidRequest(f"{ctx} spans another mesh than table {self.tables[0].name!r}")
        if ctx is None or not is_grad_enabled():
            # Inside a run rows are those of the step, whether gradients follow or not.
            purpose = None if ctx is None else Purpose(ctx.mark)
            found = look_up(self.tables, columns, deadline, purpose)
            rows = Tensor(found.rows)
        else:
            number = ctx.next_number()
            found = look_up(self.tables, columns, deadline, Purpose(ctx.mark, ctx.id, number))
            rows = Tensor(found.rows, requires_grad=True)
            ctx.record(number, found, rows)
        inverse = found.route.inverse
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
