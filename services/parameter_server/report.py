"""What a server tells about a table."""

from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.services.parameter_server.table import TableShard


def table_report(table: TableShard) -> pb.InspectTableResponse:
    """Return the state of this server's shard of a table."""
    rows, held, figures = table.row_count, table.bytes, table.figures
    return pb.InspectTableResponse(
        spec=table.spec,
        rows=rows,
        bytes=held,
        steps=table.steps,
        expected_row_bytes=table.expected_row_bytes,
        actual_row_bytes=held / rows if rows else 0.0,
        file_bytes=table.file_bytes,
        lookups=figures.lookups,
        ids=figures.ids,
        hit_rate=figures.hit_rate,
        admitted=figures.admitted,
        refused=figures.refused,
        evicted=table.evicted,
        dropped=figures.dropped,
        staleness=figures.staleness / figures.gradients if figures.gradients else 0.0,
    )
