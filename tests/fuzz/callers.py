"""Who sends hostile frames: members of each role, a reader, and processes without a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradmesh.protos.rpcs import ADMIN, READER, ROLES
from gradmesh.sdk.mesh.connect import join_mesh
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.serving import TableReader
from gradmesh.sdk.transport.channel import Channel, Dialer
from tests.fuzz.rpc_frames import COORDINATOR
from tests.fuzz.words import OTHERS

NO_TOKEN, WRONG_TOKEN = "none", "wrong"
CALLERS = (*ROLES, NO_TOKEN, WRONG_TOKEN)
"""A role, or a caller that cannot say who it is."""

MAX_FRAME_BYTES = 1 << 20
"""Largest message that the server under test accepts."""

_NOWHERE = "127.0.0.1:1"


def writes(caller: str) -> bool:
    """Return whether valid requests of a caller may change tables."""
    return caller not in (READER, NO_TOKEN, WRONG_TOKEN)


def metadata_of(channel: Channel) -> tuple[tuple[str, str | bytes], ...]:
    """Return what the caller of a channel shows with each call."""
    return channel.credentials.metadata(5.0)


class FuzzCaller:
    """One caller and its channels.

    Args:
        caller: One of `CALLERS`.
        coordinator: Address of the coordinator.
        server: Address of the parameter server.
        token_file: Its token.

    Attributes:
        name: Its name as a member; empty if it is not a member.
        incarnation: Its incarnation.
    """

    def __init__(self, caller: str, coordinator: str, server: str, token_file: Path) -> None:
        self.name, self.incarnation = "", 1
        security = None if caller == NO_TOKEN else SecurityConfig(token_file=token_file)
        dial = Dialer(security=security, lane="unary", max_frame_bytes=2 * MAX_FRAME_BYTES)
        self._closing: list[Any] = []
        if caller in (NO_TOKEN, WRONG_TOKEN):
            to_coordinator, to_server = dial.coordinator(coordinator), dial(server, OTHERS[1])
            self._closing += [to_coordinator, to_server]
        elif caller == READER:
            reader = TableReader(coordinator, security=security)
            self._closing.append(reader)
            (to_coordinator,) = reader._coordinators._channels
            to_server = reader._servers.dial(server, OTHERS[1])
        else:
            role: Any = "client" if caller == ADMIN else caller
            mesh = join_mesh(
                coordinator, name=f"fuzz-{caller}", role=role, address=_NOWHERE, dial=dial
            )
            self._closing.append(mesh)
            self.name, self.incarnation = mesh.connection.name, mesh.connection.incarnation
            to_coordinator = mesh.connection.coordinator._channel
            to_server = mesh.connection.servers.dial(server, OTHERS[1])
        self._channels = {COORDINATOR: to_coordinator}
        self._server = to_server

    def channel(self, process: str) -> Channel:
        """Return the channel to a process; it uses gRPC alone."""
        return self._channels.get(process, self._server)

    def close(self) -> None:
        """Leave the mesh, and close the channels."""
        self._server.close()
        for one in self._closing:
            one.close()
