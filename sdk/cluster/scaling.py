"""Changing the number of parameter servers."""

import time
from collections.abc import Callable
from typing import TypeAlias

from gradmesh.protos.coordinator.v1 import reshard_pb2
from gradmesh.protos.errors import DeadlineExceeded, InvalidRequest, ReshardAborted
from gradmesh.sdk.cluster.connection import Connection

OnReshard: TypeAlias = Callable[[reshard_pb2.Reshard], object]
"""Called with the state of the reshard, several times a second."""

_POLL_S = 0.1


def scale(
    connection: Connection,
    parameter_servers: int,
    *,
    wait_s: float = 0.0,
    watch: OnReshard = lambda reshard: None,
    timeout_s: float = 3600.0,
) -> reshard_pb2.Reshard:
    """Change the number of parameter servers while they serve, and wait until that is done.

    Training continues; rows, optimizer state and steps are as without the change. The reshard does
    not need this process: the coordinator completes or aborts it.

    Args:
        connection: To the mesh.
        parameter_servers: The number to reach.
        wait_s: Seconds to wait for servers to be added; 0 for the coordinator's own choice.
        watch: Called with the state of the reshard.
        timeout_s: How long to wait for the end.

    Returns:
        The reshard, done.

    Raises:
        InvalidRequest: The number is not possible.
        ReshardUnderWay: A reshard to another number is under way.
        ReshardAborted: It was aborted; the message says why. Nothing has changed.
        DeadlineExceeded: It is not over yet.
    """
    if parameter_servers < 1:
        raise InvalidRequest(
            f"{parameter_servers} parameter servers cannot hold the tables; there is one at least",
            parameter_servers=parameter_servers,
        )
    deadline = connection.deadline(timeout_s)
    coordinator = connection.coordinator
    state = coordinator.scale_parameter_servers(parameter_servers, wait_s, connection.deadline())
    number = state.number
    while True:
        watch(state)
        if state.phase == reshard_pb2.RESHARD_PHASE_DONE or state.number > number:
            return state
        if state.phase == reshard_pb2.RESHARD_PHASE_ABORTED:
            raise ReshardAborted(
                f"{parameter_servers} parameter servers: {state.error}", reshard=number
            )
        if deadline.passed:
            raise DeadlineExceeded(
                f"the parameter servers are not {parameter_servers} after {timeout_s:g} s; the "
                "reshard continues"
            )
        time.sleep(_POLL_S)
        state = coordinator.get_reshard(connection.deadline())
