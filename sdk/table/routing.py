"""Routing: which ids go to which server, and the positions of the returned rows; no I/O.

The distinct rows of a request are ordered by server, so that a message holds one run of rows for
each table: nothing is gathered or scattered, only copied.
"""

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import route_ids, route_one
from gradmesh.protos import limits
from gradmesh.protos.sharding import Ids, ShardMap
from gradmesh.sdk.table.table_set import TableSet, WantedIds

# Bytes of a message beside ids and rows: its fields, and for each table its name and shapes.
_HEAD_BYTES = 1024
_TABLE_BYTES = 64 + limits.MAX_NAME_BYTES


class TableSlice(NamedTuple):
    """The part of a message for one table; a tuple, because lookups create many of them.

    Args:
        table: Index of the table in its set.
        group: Index of the matrix that holds its rows.
        begin: First of its rows in the matrix.
        ids: Distinct ids, int64 [n].
    """

    table: int
    group: int
    begin: int
    ids: Ids

    @property
    def span(self) -> slice:
        """The rows in their matrix."""
        return slice(self.begin, self.begin + self.ids.size)


class ShardMessage(NamedTuple):
    """One message to one server.

    Args:
        shard: Which server.
        number: Counts the messages to that server, from 0.
        slices: What it asks, table by table.
    """

    shard: int
    number: int
    slices: list[TableSlice]


class Route(NamedTuple):
    """A request for rows of several tables.

    Args:
        messages: Servers that hold none of the rows get none.
        inverse: For each wanted id the position of its row in the matrix of its group, int64 [n].
        totals: Number of rows in the matrix of each group.
        distinct: The ids that are sent, int64 [m]: all of one matrix, then those of the next.
    """

    messages: list[ShardMessage]
    inverse: NDArray[np.int64]
    totals: list[int]
    distinct: Ids

    @property
    def depth(self) -> int:
        """The greatest number of messages to one server."""
        return max((message.number + 1 for message in self.messages), default=0)

    @property
    def shards(self) -> set[int]:
        """The servers that hold any of it."""
        return {message.shard for message in self.messages}


def route(
    tables: TableSet,
    wanted: WantedIds,
    shards: ShardMap,
    max_bytes: int = limits.MAX_FRAME_BYTES,
) -> Route:
    """Route ids; each is sent once for each table.

    Args:
        tables: Whose ids.
        wanted: The ids.
        shards: The shard map.
        max_bytes: Largest message; bigger ones are cut.

    Raises:
        IdOutOfRange: An id is not a row of its table.
    """
    count = len(shards.names)
    if count == 1 and tables.only is not None:
        return _route_one(tables, tables.only, wanted, max_bytes)
    group_count = len(tables.groups)
    wrong, distinct, inverse, layout, counted = route_ids(
        wanted.ids,
        wanted.starts,
        tables.bounds,
        shards.bucket_shards,
        count,
        tables.group_of,
        tables.order,
        group_count,
    )
    if wrong >= 0:
        raise tables.out_of_range(wanted, wrong)
    totals = counted.tolist()
    before = list(itertools.accumulate(totals, initial=0)) if group_count > 1 else (0,)
    begins, sizes = layout.tolist()
    groups, row_bytes = tables.group_list, tables.row_bytes
    messages: list[ShardMessage] = []
    for shard in range(count):
        slices: list[TableSlice] = []
        need = _HEAD_BYTES
        for table, size in enumerate(sizes[shard]):
            if size:
                group, begin = groups[table], begins[shard][table]
                at = before[group] + begin
                slices.append(TableSlice(table, group, begin, distinct[at : at + size]))
                need += _TABLE_BYTES + size * (8 + row_bytes[table])
        if need <= max_bytes and len(slices) <= limits.MAX_ARRAYS // 2:
            if slices:
                messages.append(ShardMessage(shard, 0, slices))
        else:
            cut = _cut(slices, row_bytes, max_bytes)
            messages += [ShardMessage(shard, number, some) for number, some in enumerate(cut)]
    return Route(messages, inverse, totals, distinct)


def _route_one(
    tables: TableSet, bounds: tuple[int, int], wanted: WantedIds, max_bytes: int
) -> Route:
    """Route ids of one table to one server, the case of most small requests."""
    wrong, distinct, inverse = route_one(wanted.ids, *bounds)
    if wrong >= 0:
        raise tables.out_of_range(wanted, wrong)
    size = distinct.size
    if not size:
        return Route([], inverse, [0], distinct)
    slices = [TableSlice(0, 0, 0, distinct)]
    if _HEAD_BYTES + _TABLE_BYTES + size * (8 + tables.row_bytes[0]) <= max_bytes:
        return Route([ShardMessage(0, 0, slices)], inverse, [size], distinct)
    cut = _cut(slices, tables.row_bytes, max_bytes)
    messages = [ShardMessage(0, number, some) for number, some in enumerate(cut)]
    return Route(messages, inverse, [size], distinct)


def _cut(slices: list[TableSlice], row_bytes: list[int], max_bytes: int) -> list[list[TableSlice]]:
    """Cut what goes to one server into messages that fit, with ids and rows in one."""
    messages: list[list[TableSlice]] = []
    left = 0
    for some in slices:
        each = 8 + row_bytes[some.table]
        at = 0
        while at < some.ids.size:
            if left < _TABLE_BYTES + each or len(messages[-1]) == limits.MAX_ARRAYS // 2:
                messages.append([])
                # At least one row: a row beyond the limit is refused when it is sent.
                left = max(max_bytes - _HEAD_BYTES, _TABLE_BYTES + each)
            ids = some.ids[at : at + (left - _TABLE_BYTES) // each]
            messages[-1].append(TableSlice(some.table, some.group, some.begin + at, ids))
            at += ids.size
            left -= _TABLE_BYTES + ids.size * each
    return messages
