"""Apply: from gradients to changed rows on the servers."""

from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.autograd.context import Context
from gradmesh.sdk.cluster.steps import prepare_step


def apply(ctx: Context, *, timeout_s: float | None = None) -> None:
    """Apply the context's gradients to the rows of tables, on their servers.

    In a run every server gets every trainer's step, also those that this batch did not touch: a
    step is complete when all ranks have sent it. Rows that other workers looked up in the context
    count, too. When this returns, the step is on every server and cannot be lost; when it raises,
    the next generation determines whether it was committed.

    Args:
        ctx: A context after its backward.
        timeout_s: Deadline; the mesh's by default.

    Raises:
        ContextReleased: The context was released.
        StaleGeneration: A newer generation of trainers has formed.
    """
    ctx.check()

    def request_for(address: str) -> pb.ApplyRequest:
        return pb.ApplyRequest(
            context=ctx.id,
            mark=ctx.mark,
            returned=ctx.tables.returned(address),
            failed_passes=ctx.failed,
        )

    prepare_step(
        ctx.mesh.connection.servers,
        request_for,
        ctx.mesh.connection.deadline(timeout_s),
        step=ctx.mark,
        holders=ctx.tables.channels,
        everywhere=ctx.mark is not None or bool(ctx.messages.known_by),
    )
    ctx.note_applied()
