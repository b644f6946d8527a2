"""Backward and apply: from a loss to changed rows on the servers."""

from collections.abc import Sequence
from typing import Any

from gradmesh.engine.autograd import Tensor, run_backward
from gradmesh.protos.frame import Frame
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.autograd.context import Context, RecordedLookup
from gradmesh.sdk.mesh.servers import METHODS
from gradmesh.sdk.transport.channel import Pending
from gradmesh.sdk.transport.deadline import Deadline


def backward(
    ctx: Context,
    roots: Sequence[Tensor],
    *,
    retain_graph: bool = False,
    timeout_s: float | None = None,
) -> None:
    """Run the backward pass and bring the gradients of looked-up rows to their servers.

    Gradients of this process's parameters are collected in the context; `.grad` stays untouched.

    Args:
        ctx: The context of the forward pass.
        roots: Losses of one element each.
        retain_graph: Keep the graph for another pass.
        timeout_s: Deadline; the mesh's by default.

    Raises:
        GradientError: A root carries no gradient.
        GradmeshError: A server could not take its gradients; the message names it.
    """
    run_backward(roots, retain_graph=retain_graph, into=ctx.map)
    deadline = ctx.mesh.deadline(timeout_s)
    pending: list[Pending] = []
    for recorded in ctx.lookups:
        grad = ctx.map.pop(recorded.rows, None)
        if grad is not None:
            pending += _send(ctx, recorded, grad, deadline)
    for call in pending:
        call.result()


def _send(ctx: Context, recorded: RecordedLookup, grad: Any, deadline: Deadline) -> list[Pending]:
    """Begin to send the gradients of one lookup to all its servers."""
    lookup = recorded.lookup
    message = pb.BackwardRequest(context=ctx.id, lookup=recorded.number)
    return [
        ctx.mesh.servers.channel(lookup.shards, shard).start(
            METHODS["Backward"], Frame(message, arrays), deadline
        )
        for shard, arrays in lookup.route.split(grad).items()
    ]


def apply(ctx: Context, *, timeout_s: float | None = None) -> None:
    """Let the servers change the rows by the context's gradients.

    In a run, every server hears of every trainer's step, also the ones this batch did not touch:
    a step is complete when all ranks have said so.

    Args:
        ctx: A context after its backward.
        timeout_s: Deadline; the mesh's by default.
    """
    deadline = ctx.mesh.deadline(timeout_s)
    servers = ctx.mesh.servers
    shards: ShardMap = servers.shard_map(deadline)
    request = pb.ApplyRequest(context=ctx.id, mark=ctx.mark)
    touched = {shard for recorded in ctx.lookups for shard in recorded.lookup.route.pieces}
    everywhere = range(len(shards.names))
    chosen = sorted(touched) if ctx.mark is None else everywhere
    servers.call_each(shards, "Apply", dict.fromkeys(chosen, request), deadline)
    ctx.applied = True


def get_gradients(ctx: Context) -> dict[Any, Any]:
    """Return the gradients of this process's leaves in a context, array by leaf."""
    return ctx.gradients()
