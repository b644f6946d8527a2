"""One parameter server, called directly."""

import numpy as np

from gradmesh.engine import optim
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.frame import Frame
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.table.recipe import Initializer

CONTEXT = context_pb2.ContextId(worker="raw", incarnation=1, counter=1)


class OneServer:
    """A mesh of one server with one table of 10 rows of ones, called by raw rpcs."""

    def __init__(self, cluster, raw):
        self.mesh = cluster.connect()
        self.table = self.mesh.table(
            "user",
            rows=10,
            dim=2,
            optimizer=optim.SGD(lr=1.0),
            initializer=Initializer.constant(1.0),
        )
        self.store = cluster.stores[0]
        self.epoch = self.mesh.connection.servers.shard_map(self.mesh.connection.deadline()).epoch
        self.table.lookup([0])
        self._address = cluster.servers[0].server.address
        self._raw = raw

    def call(self, rpc, request, timeout_s=20.0):
        return self._raw(self._address, rpc, request, timeout_s)

    def state(self):
        shard = self.store.table("user", self.mesh.connection.deadline())
        rows = self.table.lookup(np.arange(10)).tolist()
        state = [{n: a.tolist() for n, a in state.items()} for _, _, state in shard.blocks()]
        return rows, state, shard.row_count, shard.steps

    def lookup(self, ids=(1, 2), *, number=1, tables=("user",), context=CONTEXT, **fields):
        message = pb.LookupRequest(
            context=context,
            lookup=number,
            shard_epoch=fields.pop("epoch", self.epoch),
            tables=tables,
            **fields,
        )
        frame = Frame(message, [np.array(ids, np.int64)])
        return self.call("Lookup", frame).arrays[0]

    def backward(self, grads, *, number=1, context=CONTEXT):
        self.call("Backward", Frame(pb.BackwardRequest(context=context, lookup=number), grads))

    def push(self, arrays, *, sequence=1, worker="raw", incarnation=1, tables=("user",)):
        message = pb.PushRequest(
            worker=worker,
            incarnation=incarnation,
            sequence=sequence,
            shard_epoch=self.epoch,
            tables=tables,
        )
        return self.call("Push", Frame(message, arrays)).applied


def ones(count=2, dim=2, dtype=np.float32):
    return np.ones((count, dim), dtype)
