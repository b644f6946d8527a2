"""A process's part in rpc: it calls others, serves their calls, and holds references."""

from collections.abc import Callable, Sequence
from typing import final

from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.owner.registry import Registry
from gradmesh.sdk.rpc import current
from gradmesh.sdk.rpc.answers import Answers
from gradmesh.sdk.rpc.caller import Caller
from gradmesh.sdk.rpc.execution import Execution
from gradmesh.sdk.rpc.gathers import Gathers
from gradmesh.sdk.rpc.outstanding import Outstanding
from gradmesh.sdk.rpc.peers import Dial, Peers
from gradmesh.sdk.rpc.recording import recorder
from gradmesh.sdk.rpc.threads import Threads
from gradmesh.sdk.rpc.worker import WorkerInfo
from gradmesh.sdk.rref.collector import Collector
from gradmesh.sdk.rref.control import Control
from gradmesh.sdk.rref.ids import Worker
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.server import Server


@final
class Agent:
    """One worker among others.

    Its servicer is put into the process's server; then `join` tells it where the others are.

    Args:
        name: Of this worker.
        incarnation: Of this worker.
        functions: What others may call.
        dial: Makes channels.
        rank: Its place among the workers, if it has one.
        timeout_s: Of calls that set none.
        threads: Calls that run at once before others stand in line.
        inline: Calls that may run on gRPC's own threads.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        functions: Registry,
        dial: Dial,
        *,
        rank: int | None = None,
        timeout_s: float = 60.0,
        threads: int = 16,
        inline: int = 8,
    ) -> None:
        self.name = name
        self.me = Worker(name, incarnation)
        self.info = WorkerInfo(name, rank, incarnation)
        self.functions = functions
        self.joined = False
        self.mesh: Mesh | None = None
        self.world: tuple[str, ...] = ()
        self.strict_refs = False
        self.gathers = Gathers()
        self._server: Server | None = None
        self._before_close: list[Callable[[], None]] = []
        self.peers = Peers(dial)
        self.threads = Threads("rpc-run", patient=threads)
        self.control = Control(self.peers, self.threads.run)
        self.outstanding = Outstanding(self.me, self.peers, self.threads)
        self.caller = Caller(
            self.info, functions, self.peers, self.outstanding, self.control, timeout_s
        )
        self.exchange = self.caller.exchange
        self.answers = Answers(self.me, self.control, self.threads.run)
        self.execution = Execution(
            self.me, functions, self.exchange, self.threads, self.answers, inline, self
        )
        self.collector = Collector(self.exchange, self.peers)

    def join(self, mesh: Mesh, world: Sequence[str] = ()) -> None:
        """Begin to find others through the coordinator.

        Args:
            mesh: This process's membership.
            world: Names of the workers that begin and end together with this one.
        """
        self.mesh = mesh
        self.world = tuple(world)
        self.peers.join(mesh.coordinator)
        mesh.watch_contexts(self.exchange.owners)
        self.control.start()
        self.collector.start()
        self.joined = True

    def serve_with(self, server: Server) -> None:
        """Take over a server of this worker's own; closed when it leaves."""
        self._server = server

    def before_close(self, end: Callable[[], None]) -> None:
        """Call a function when this worker leaves, while others can still be reached."""
        self._before_close.append(end)

    @property
    def closed(self) -> bool:
        """Whether no call can be made any more."""
        return self.caller.closed

    def channel(self, worker: str, deadline: Deadline) -> Channel:
        """Return the channel to another worker, for rpcs of other services.

        Raises:
            WorkerNotFound: Nobody of that name is there.
        """
        return self.peers.channel(worker, deadline)

    def debug_info(self) -> dict[str, int]:
        """Return what is under way, in figures."""
        threads, idle = self.threads.figures()
        return {
            "agent.thread_pool_size": threads,
            "agent.num_idle_threads": idle,
            "agent.client_active_calls": len(self.outstanding),
            "agent.server_active_calls": self.execution.active,
            "agent.server_active_async_calls": len(self.answers),
            **self.exchange.owners.counts(),
            **self.exchange.users.counts(),
            **recorder().counters(),
        }

    def leave(self, grace_s: float) -> None:
        """Stop to serve, leave the mesh, end everything; calls under way fail after `grace_s`."""
        if self.closed:
            return
        self._end_others()
        self._end_server(grace_s)
        if self.mesh is not None:
            self.mesh.close()
        self.close()

    def close(self) -> None:
        """End everything at once; calls under way fail. May be called twice."""
        self._end_others()
        self._end_server(0.0)
        self.caller.closed = True
        current.uninstall(self)
        self.gathers.close()
        self.collector.close()
        self.control.close()
        self.outstanding.close()
        self.peers.close()
        self.threads.close()

    def _end_server(self, grace_s: float) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.drain(grace_s)

    def _end_others(self) -> None:
        while self._before_close:
            self._before_close.pop()()
