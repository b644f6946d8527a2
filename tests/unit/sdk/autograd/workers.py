"""Workers of one process with real servers between them, for passes without an RPC agent."""

import contextlib
import itertools
from types import SimpleNamespace
from typing import Any

from gradmesh.engine.autograd import Tensor
from gradmesh.protos.autograd.v1 import autograd_pb2
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.autograd.current import bound
from gradmesh.sdk.autograd.participant import ContextRecorder
from gradmesh.sdk.autograd.registry import ContextRegistry
from gradmesh.sdk.autograd.servicer import AutogradServicer
from gradmesh.sdk.optim.step import StepHandler
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.servicer import OwnerServicer
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.server import Server

_OWNER = owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]
_AUTOGRAD = autograd_pb2.DESCRIPTOR.services_by_name["AutogradService"]


class Worker:
    """One worker; `call` does the work of an RPC agent for each message."""

    def __init__(self, name: str, workers: "dict[str, Worker]") -> None:
        self.name = name
        self.incarnation = 7
        self.workers = workers
        self.contexts = ContextRegistry()
        self.recorder = ContextRecorder(self.contexts)
        agent = Agent(name, self.incarnation, Registry(), Channel)
        self.servicer = AutogradServicer(
            self.contexts, name, self.incarnation, StepHandler(agent, self.contexts).step
        )
        owner = OwnerServicer(
            name, "worker", self.incarnation, agent.functions, self.contexts, agent
        )
        self.server = Server(
            {_OWNER: owner, _AUTOGRAD: self.servicer}, listen="127.0.0.1:0", threads=4
        )
        self.server.start()
        self._channels: dict[str, Channel] = {}
        counter = itertools.count(1)
        connection = SimpleNamespace(
            deadline=lambda s=None: Deadline.after(20.0 if s is None else s),
            new_context_id=lambda: context_pb2.ContextId(
                worker=name, incarnation=self.incarnation, counter=next(counter)
            ),
            servers=SimpleNamespace(held_map=lambda: None),
            watch_contexts=lambda contexts: None,
        )
        self.mesh: Any = SimpleNamespace(connection=connection)
        self.contexts.attach(self, self.mesh)

    def channel(self, worker: str, deadline: Deadline) -> Channel:
        if worker not in self._channels:
            address = self.workers[worker].server.address
            self._channels[worker] = Channel(address, worker, patience_s=0.5)
        return self._channels[worker]

    def suspect(self, worker: str) -> None:
        pass

    def call(self, target: "Worker", function: Any, *tensors: Tensor) -> Any:
        """Run a function of tensors on another worker, in the context of this thread."""
        note = self.recorder.outgoing(tensors, target.name, forced=True)
        sent = [Tensor(t.data.copy(), t.requires_grad) for t in tensors]
        reply = None
        if note is None:
            result = function(*sent)
        else:
            with target.recorder.handling(note):
                target.recorder.incoming(note, sent, self.name)
                result = function(*sent)
                results = result if isinstance(result, tuple) else (result,)
                reply = target.recorder.outgoing(results, self.name, forced=False)
        results = result if isinstance(result, tuple) else (result,)
        back = [Tensor(t.data.copy(), t.requires_grad) for t in results]
        if reply is not None:
            self.recorder.incoming(reply, back, target.name)
        return tuple(back) if isinstance(result, tuple) else back[0]

    @contextlib.contextmanager
    def context(self) -> Any:
        ctx = self.contexts.open(None, None)
        try:
            with bound(ctx):
                yield ctx
        finally:
            self.contexts.leave(ctx)

    def close(self) -> None:
        self.contexts.detach(1.0)
        for channel in self._channels.values():
            channel.close()
        self.servicer.close()
        self.server.drain(1.0)


@contextlib.contextmanager
def make_workers(*names: str) -> Any:
    workers: dict[str, Worker] = {}
    for name in names:
        workers[name] = Worker(name, workers)
    try:
        yield list(workers.values())
    finally:
        for worker in workers.values():
            worker.close()
