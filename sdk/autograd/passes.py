"""Backward and apply: from a loss to changed rows on the servers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradmesh.engine.autograd import Tensor, run_backward
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Frame
from gradmesh.protos.method import Body
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.precision import pack
from gradmesh.sdk.autograd.context import Context, RecordedLookup
from gradmesh.sdk.mesh.servers import METHODS, call_all
from gradmesh.sdk.transport.channel import Channel, Writer


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
        ContextReleased: The context is over.
        InvalidRequest: An earlier pass has sent gradients of the same rows.
        GradientError: A root carries no gradient.
        GradmeshError: A server could not take its gradients; the message names it.
    """
    ctx.check()
    run_backward(roots, retain_graph=retain_graph, into=ctx.map)
    deadline = ctx.mesh.deadline(timeout_s)
    returned = [
        (recorded, grads)
        for recorded in ctx.lookups
        if (grads := _take_grads(ctx, recorded)) is not None
    ]
    for recorded, _ in returned:
        number = recorded.lookup.first
        if number in ctx.sent:
            raise InvalidRequest(
                f"{ctx}: the rows of lookup {number} have their gradients from an earlier "
                "backward; add the losses up and run one backward",
                lookup=number,
            )
    calls = [call for recorded, grads in returned for call in _calls(ctx, recorded, grads)]
    call_all(METHODS["Backward"], calls, deadline)
    for channel, _ in calls:
        ctx.returned[channel.address] = ctx.returned.get(channel.address, 0) + 1
    ctx.sent.update(recorded.lookup.first for recorded, _ in returned)


def _take_grads(ctx: Context, recorded: RecordedLookup) -> list[Any] | None:
    """Return the gradients of a lookup's rows, or None if the roots did not reach it."""
    grads = [ctx.map.pop(rows, None) for rows in recorded.rows]
    if all(grad is None for grad in grads):
        return None
    # Tables of one lookup are answered together, also those of a dim that the roots left out.
    return [
        np.zeros_like(rows.data) if grad is None else grad
        for rows, grad in zip(recorded.rows, grads, strict=True)
    ]


def _calls(
    ctx: Context, recorded: RecordedLookup, grads: list[Any]
) -> list[tuple[Channel, Body | Writer]]:
    """Return what goes to each server that the rows of one lookup came from: views of rows."""
    lookup, servers, wire = recorded.lookup, ctx.mesh.servers, recorded.lookup.wire.grads
    return [
        (
            servers.channel(lookup.shards, part.shard),
            Frame(
                pb.BackwardRequest(
                    context=ctx.id, lookup=lookup.first + part.number, wire_grads=wire
                ),
                [
                    array
                    for piece in part.pieces
                    for array in pack(grads[piece.group][piece.place], wire)
                ],
            ),
        )
        for part in lookup.route.parts
    ]


def apply(ctx: Context, *, timeout_s: float | None = None) -> None:
    """Let the servers change the rows by the context's gradients.

    In a run, every server hears of every trainer's step, also the ones this batch did not touch:
    a step is complete when all ranks have said so. When this returns, the step is on every server
    and cannot be lost; when it raises, the next generation knows whether it counts.

    Args:
        ctx: A context after its backward.
        timeout_s: Deadline; the mesh's by default.

    Raises:
        ContextReleased: The context is over.
        StaleGeneration: The trainers' group has moved on.
    """
    ctx.check()
    deadline = ctx.mesh.deadline(timeout_s)
    # Those that have the gradients, where they were then: a server that restarted since has none.
    channels = dict(ctx.channels)
    if ctx.mark is not None:
        shards = ctx.mesh.servers.shard_map(deadline)
        everywhere = [ctx.mesh.servers.channel(shards, i) for i in range(len(shards.names))]
        channels |= {channel.address: channel for channel in everywhere}
    calls = [
        (
            channel,
            pb.ApplyRequest(context=ctx.id, mark=ctx.mark, returned=ctx.returned.get(address, 0)),
        )
        for address, channel in channels.items()
    ]
    call_all(METHODS["Apply"], calls, deadline)
    ctx.applied = True
    if ctx.mark is not None:
        ctx.mesh.servers.note_step(ctx.mark)


def get_gradients(ctx: Context) -> dict[Any, Any]:
    """Return the gradients of this process's leaves in a context, array by leaf."""
    return ctx.gradients()
