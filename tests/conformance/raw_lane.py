"""Lane connections without a client, to send bytes that no client sends."""

import socket
from typing import Any

from gradmesh.protos.lane import VERSION
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.lane.handshake import greet, host_identity
from gradmesh.sdk.transport.lane.link import Link


def offer(mesh: Any, kind: int) -> owner_pb2.OpenLaneResponse:
    request = owner_pb2.OpenLaneRequest(kinds=[kind], host=host_identity(), version=VERSION)
    reply = mesh.channel.call(METHODS["OpenLane"], request, Deadline.after(5))
    assert isinstance(reply, owner_pb2.OpenLaneResponse)
    return reply


def dial(kind: str, address: str) -> socket.socket:
    if kind == "tcp":
        return socket.create_connection(("127.0.0.1", int(address)), 5)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(20)
    sock.connect("\0" + address)
    return sock


def open_link(mesh: Any, kind: str) -> Link:
    number = {"shm": owner_pb2.LANE_KIND_SHM, "tcp": owner_pb2.LANE_KIND_TCP}[kind]
    given = offer(mesh, number)
    return greet(dial(kind, given.address), kind, given.secret, 1 << 20)
