"""One end of a lane in a process of its own, to be killed: `server` or `client ADDRESS LANE`."""

import sys
import time
from typing import Any

import numpy as np

from gradmesh.protos.frame import Frame
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.servicer import NoContexts, OwnerServicer
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.server import Call, Server


class Slow:
    """Answers lookups; those of table "wait" are only printed."""

    def lookup(self, request: Frame[Any], call: Call) -> Frame[Any]:
        if "wait" in request.message.tables:
            print("entered", flush=True)
            time.sleep(60)
        return Frame(pb.LookupResponse(), list(request.arrays))

    def __getattr__(self, name: str) -> Any:
        """Serve every other rpc as a lookup."""
        return self.lookup


def serve() -> None:
    server = Server(
        {
            pb.DESCRIPTOR.services_by_name["ParameterServerService"]: Slow(),
            owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]: OwnerServicer(
                "slow", "r", 1, Registry(), NoContexts()
            ),
        },
        listen=sys.argv[2],
    )
    server.start()
    print(server.address, flush=True)
    sys.stdin.read()


def ask(address: str, lane: Any) -> None:
    channel = Channel(address, "server", lane=lane)
    for table in ("t", "wait"):
        frame = Frame(pb.LookupRequest(tables=[table]), [np.zeros(1_000_000)])
        channel.call(METHODS["Lookup"], frame, Deadline.after(60))


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve()
    else:
        ask(*sys.argv[2:])
