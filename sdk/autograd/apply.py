"""Apply: from gradients to changed rows on the servers."""

import time
from collections.abc import Iterator

from gradmesh.protos.errors import StaleShardMap
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.autograd.context import Context
from gradmesh.sdk.autograd.tables import step_of
from gradmesh.sdk.mesh.servers import METHODS, call_all
from gradmesh.sdk.process import fault
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline

_PAUSE_S = 0.05


def apply(ctx: Context, *, timeout_s: float | None = None) -> None:
    """Let the servers change the rows by the context's gradients.

    In a run, every server hears of every trainer's step, also the ones this batch did not touch:
    a step is complete when all ranks have said so. Rows that other workers looked up in the context
    count, too. When this returns, the step is on every server and cannot be lost; when it raises,
    the next generation knows whether it counts.

    Args:
        ctx: A context after its backward.
        timeout_s: Deadline; the mesh's by default.

    Raises:
        ContextReleased: The context is over.
        StaleGeneration: The trainers' group has moved on.
    """
    ctx.check()
    deadline = ctx.mesh.deadline(timeout_s)
    fault.point("before-apply", step_of(ctx))
    while True:
        try:
            call_all(METHODS["Apply"], _applies(ctx, _channels(ctx, deadline)), deadline)
            break
        except StaleShardMap:
            # A step that has read no rows meets a reshard: it begins when buckets have moved.
            if deadline.remaining_s() <= _PAUSE_S:
                raise
            time.sleep(_PAUSE_S)
            ctx.mesh.servers.refresh(deadline)
    fault.point("after-apply", step_of(ctx))
    if ctx.mark is not None:
        ctx.mesh.servers.note_step(ctx.mark)
    ctx.note_applied()


def _channels(ctx: Context, deadline: Deadline) -> dict[str, Channel]:
    """Return the servers that must hear of it, by address."""
    # Those that have the gradients, where they were then: a server that restarted since has none.
    channels = dict(ctx.tables.channels)
    if ctx.mark is not None or ctx.messages.peers:
        shards = ctx.mesh.servers.shard_map(deadline)
        everywhere = [ctx.mesh.servers.channel(shards, i) for i in range(len(shards.names))]
        channels |= {channel.address: channel for channel in everywhere}
    return channels


def _applies(
    ctx: Context, channels: dict[str, Channel]
) -> Iterator[tuple[Channel, pb.ApplyRequest]]:
    """Yield what goes to each server; each is sent before the next is made."""
    for number, (address, channel) in enumerate(channels.items()):
        if number:
            fault.point("between-servers", step_of(ctx))
        yield (
            channel,
            pb.ApplyRequest(
                context=ctx.id,
                mark=ctx.mark,
                returned=ctx.tables.returned(address),
                failed_passes=ctx.failed,
            ),
        )
