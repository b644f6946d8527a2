"""Changing the number of parameter servers, as a client asks for it."""

import time
from collections.abc import Callable
from typing import TypeAlias

from gradmesh.protos.coordinator.v1 import reshard_pb2
from gradmesh.protos.errors import DeadlineExceeded, InvalidRequest, ReshardAborted
from gradmesh.sdk.mesh.mesh import Mesh

Watch: TypeAlias = Callable[[reshard_pb2.Reshard], object]
"""Called with the reshard, several times a second."""

_POLL_S = 0.1


def scale(
    mesh: Mesh,
    parameter_servers: int,
    *,
    wait_s: float = 0.0,
    watch: Watch = lambda reshard: None,
    timeout_s: float = 3600.0,
) -> reshard_pb2.Reshard:
    """Change the number of parameter servers while they serve, and wait until that is done.

    Whoever trains goes on; rows, optimizer state and steps are what they would have been. The
    reshard does not need this process: it is completed, or given up, whatever happens to it.

    Args:
        mesh: The mesh.
        parameter_servers: How many there shall be.
        wait_s: Seconds to wait for servers to be added; 0 for the coordinator's own choice.
        watch: Called with how far it is.
        timeout_s: How long to wait for the end.

    Returns:
        The reshard, done.

    Raises:
        InvalidRequest: There cannot be so many.
        ReshardUnderWay: The number is being changed to another.
        ReshardAborted: It was given up; the message says why. All is as before.
        DeadlineExceeded: It is not over yet.
    """
    if parameter_servers < 1:
        raise InvalidRequest(
            f"{parameter_servers} parameter servers cannot hold the tables; there is one at least",
            parameter_servers=parameter_servers,
        )
    deadline = mesh.deadline(timeout_s)
    state = mesh.coordinator.scale_parameter_servers(parameter_servers, wait_s, mesh.deadline())
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
                "reshard goes on"
            )
        time.sleep(_POLL_S)
        state = mesh.coordinator.get_reshard(mesh.deadline())
