"""A process that a hostile peer of its shm lane attacks: `server`, or `client ADDRESS`.

The server holds a dense table and a hash table of ones. The client refreshes rows, as a trainer
does before each step.
"""

import sys

import numpy as np

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidFrame
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.precision import EXACT
from gradmesh.protos.sharding import ShardMap, even_buckets
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.servicer import OwnerServicer
from gradmesh.sdk.table.prefetch import _replace
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.server import Server
from gradmesh.services.parameter_server.servicer import ParameterServerServicer
from gradmesh.services.parameter_server.store import TableStore

ROWS, DIM = 1000, 8
FRAME_BYTES = 1 << 22


def spec(name: str) -> table_pb2.TableSpec:
    return table_pb2.TableSpec(
        name=name,
        kind="TABLE_KIND_DENSE" if name == "dense" else "TABLE_KIND_HASH",
        rows=ROWS if name == "dense" else 0,
        dim=DIM,
        dtype="ELEMENT_TYPE_FLOAT32",
        optimizer=table_pb2.Recipe(name="sgd", settings={"lr": 1.0}),
        initializer=table_pb2.Recipe(name="constant", settings={"value": 1.0}),
    )


def serve() -> None:
    buckets = np.array(even_buckets(2), np.int32)
    # One of two servers, so that ids are also checked for being here.
    shards = ShardMap(1, ["server", "other"], ["server", "other"], buckets)
    store = TableStore(
        "server",
        lambda name, deadline: spec(name),
        lambda epoch, deadline: shards,
        max_bytes=1 << 30,
        max_waiters=4,
    )
    server = Server(
        {
            pb.DESCRIPTOR.services_by_name["ParameterServerService"]: ParameterServerServicer(
                store
            ),
            owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]: OwnerServicer(
                "server", "parameter-server", 1, Registry(), store.contexts
            ),
        },
        listen="127.0.0.1:0",
        max_frame_bytes=FRAME_BYTES,
    )
    server.start()
    print(server.address, flush=True)
    sys.stdin.read()


def refresh(address: str) -> None:
    """Refresh rows many times; print how many answers were refused."""
    channel = Channel(address, "server", lane="shm", max_frame_bytes=FRAME_BYTES)
    rows = np.ones((ROWS, DIM), np.float32)
    refused = 0
    for _ in range(300):
        reply = channel.start(METHODS["Refresh"], pb.RefreshRequest(), Deadline.after(20))
        positions, new = reply.borrow().arrays
        try:
            _replace(rows, positions, new, EXACT)
        except InvalidFrame:
            refused += 1
        reply.release()
    print(refused, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve()
    else:
        refresh(sys.argv[2])
