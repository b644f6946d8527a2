"""The client half of a training run: where it starts, and how each step is prepared and committed.

    rank 0, once a generation     find_run ─► start_run
    every rank, for each step     lookups and gradients of its context ─► prepare_step
                                  the first request of the next step commits it
    reading outside the run,
    or leaving it                 commit_step

Servers prepare a step when every rank has sent it, and store it before they respond: when
`prepare_step` returns, the step is on every server and cannot be lost. No rank begins the next step
before that, so a request of step t + 1 shows a server that step t is prepared everywhere. Only the
last step of a run, and reads between two steps, need an explicit commit.

A step has a number within its run; `StepMark` names the generation, the step number and the rank.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import StaleGeneration, StaleShardMap
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.cluster.membership import Membership
from gradmesh.sdk.cluster.servers import METHODS, ParameterServers, call_all
from gradmesh.sdk.process import fault
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline

_RESHARD_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is on the servers.

    Args:
        origin: Generation in which it began; 0 for one that has not begun.
        steps: Steps that are prepared on all servers.
    """

    origin: int
    steps: int


def find_run(
    servers: ParameterServers, membership: Membership, deadline: Deadline
) -> RunState | None:
    """Return the step from which the servers can resume; None if they hold no common run.

    All servers hold every step up to it. A step that only some of them have prepared was never
    reported as done; it is aborted when the run resumes. From now on no older generation can
    change anything.

    Raises:
        StaleGeneration: A newer generation began.
    """
    request = pb.InspectRunRequest(generation=membership.generation)
    found = servers.ask_all("InspectRun", request, deadline)
    steps = min(answer.prepared_steps for answer in found)
    if len({answer.origin for answer in found}) != 1 or not found[0].origin:
        return None
    if any(answer.applied_steps > steps for answer in found):
        return None
    return RunState(found[0].origin, steps)


def start_run(
    servers: ParameterServers,
    membership: Membership,
    tables: Sequence[str],
    deadline: Deadline,
    *,
    state: RunState | None = None,
    staleness: int | None = None,
) -> RunState:
    """Start a run on all servers, or resume one; called by rank 0 once a generation.

    Args:
        servers: All servers.
        membership: The generation, and this trainer's rank in it.
        tables: Names of the run's tables. A new run without a step resets them to their initial
            rows.
        deadline: Of the call.
        state: Where to resume: the result of `find_run`, or with origin 0 the step of the
            checkpoint that was restored. None starts at the first step.
        staleness: Steps that a trainer may be ahead of the slowest one, each applying its own;
            None for a synchronous run.

    Returns:
        Where the run starts.

    Raises:
        RunLost: A server does not hold the run at that step.
        StaleGeneration: A newer generation began.
    """
    state = state or RunState(0, 0)
    request = pb.StartRunRequest(
        generation=membership.generation,
        world_size=membership.world_size,
        tables=tables,
        origin=state.origin,
        steps=state.steps,
        keep_rows=state.steps > 0,
        staleness=staleness,
    )
    servers.ask_all("StartRun", request, deadline)
    return RunState(state.origin or membership.generation, state.steps)


def prepare_step(
    servers: ParameterServers,
    request_for: Callable[[str], pb.ApplyRequest],
    deadline: Deadline,
    *,
    step: context_pb2.StepMark | None,
    holders: Mapping[str, Channel],
    everywhere: bool,
) -> None:
    """Send a context's step to the servers and wait until all have prepared it.

    Outside a run the servers apply it at once.

    Args:
        servers: All servers.
        request_for: Makes the request to the server at an address.
        deadline: Of all attempts together.
        step: The step of a run; None outside a run.
        holders: The servers that have the context's gradients, by address. A server that restarted
            since then has none, and refuses.
        everywhere: Whether the other servers must count the step, too.

    Raises:
        StaleGeneration: A newer generation began.
        MeshError: A server refused, or could not be reached in time.
    """
    number = 0 if step is None else step.step
    fault.point("before-apply", number)
    while True:
        channels = dict(holders)
        if everywhere:
            shards = servers.shard_map(deadline)
            every = [servers.channel(shards, shard) for shard in range(len(shards.names))]
            channels |= {channel.address: channel for channel in every}
        try:
            call_all(METHODS["Apply"], _requests(channels, request_for, number), deadline)
            break
        except StaleShardMap:
            # A step without lookups meets a reshard: retry until the buckets have moved.
            if deadline.remaining_s() <= _RESHARD_PAUSE_S:
                raise
            time.sleep(_RESHARD_PAUSE_S)
            servers.refresh(deadline)
    fault.point("after-apply", number)
    if step is not None:
        servers.prepared_step = step


def _requests(
    channels: Mapping[str, Channel], request_for: Callable[[str], pb.ApplyRequest], number: int
) -> Iterator[tuple[Channel, pb.ApplyRequest]]:
    """Yield each request when the one before has been sent."""
    for count, (address, channel) in enumerate(channels.items()):
        if count:
            fault.point("between-servers", number)
        yield channel, request_for(address)


def commit_step(servers: ParameterServers, deadline: Deadline) -> None:
    """Commit the newest prepared step of this process on every server.

    Returns at once if there is none. Within a run the next step commits it; only reads outside the
    run, and the end of the run, need this.

    Raises:
        MeshError: A server could not be reached in time.
    """
    step, servers.prepared_step = servers.prepared_step, None
    if step is None:
        return
    request = pb.CommitStepRequest(mark=step)

    def commit(shards: ShardMap) -> None:
        requests = dict.fromkeys(range(len(shards.names)), request)
        servers.call_each(shards, "CommitStep", requests, deadline)

    # The servers commit the steps of an older generation when the next one starts.
    with contextlib.suppress(StaleGeneration):
        servers.with_map(commit, deadline)
