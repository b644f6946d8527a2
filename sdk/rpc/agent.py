"""A process's part in rpc: it calls others, serves their calls, and holds references."""

from collections.abc import Callable
from typing import final

from gradmesh.sdk.cluster.openers import OpenerCheck
from gradmesh.sdk.rpc import current
from gradmesh.sdk.rpc.caller import RpcCaller
from gradmesh.sdk.rpc.collective import CollectiveRegistry
from gradmesh.sdk.rpc.directory import Dial, StatusSource, WorkerDirectory
from gradmesh.sdk.rpc.executor import CallExecutor
from gradmesh.sdk.rpc.ids import WorkerId, WorkerInfo
from gradmesh.sdk.rpc.outstanding import OutstandingCalls
from gradmesh.sdk.rpc.recording import recorder
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.reply import DeferredReplies
from gradmesh.sdk.rpc.rref.context import RRefCollector
from gradmesh.sdk.rpc.rref.control import RRefControl
from gradmesh.sdk.rpc.threads import ThreadPool
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline


@final
class Agent:
    """One worker among others.

    The process's server gets its servicer; then `join` lets it find the other workers.

    Args:
        name: Of this worker.
        incarnation: Of this worker.
        functions: What others may call.
        dial: Makes channels.
        rank: Rank of this worker, if it has one.
        timeout_s: Default timeout of a call.
        threads: Calls that run concurrently before others are queued.
        inline: Calls that may run on gRPC's own threads.
        leave: Ends the node that the agent belongs to, within the given seconds; `close` by
            default.
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
        leave: Callable[[float], None] | None = None,
    ) -> None:
        self.name = name
        self.me = WorkerId(name, incarnation)
        self.info = WorkerInfo(name, rank, incarnation)
        self.functions = functions
        self.joined = False
        self.world: tuple[str, ...] = ()
        self.strict_refs = False
        self.collectives = CollectiveRegistry()
        self.leave: Callable[[float], None] = leave or (lambda grace_s: self.close())
        self.directory = WorkerDirectory(dial)
        self.openers = OpenerCheck()
        self.threads = ThreadPool("rpc-run", max_queued=threads)
        self.control = RRefControl(self.directory, self.threads.run)
        self.outstanding = OutstandingCalls(self.me, self.directory, self.threads)
        self.caller = RpcCaller(
            self.info, functions, self.directory, self.outstanding, self.control, timeout_s
        )
        self.rrefs = self.caller.rrefs
        self.deferred = DeferredReplies(self.me, self.control, self.threads.run)
        self.executor = CallExecutor(
            self.me, functions, self.rrefs, self.threads, self.deferred, inline, self
        )
        self.collector = RRefCollector(self.rrefs, self.directory)

    def join(self, coordinator: StatusSource) -> None:
        """Find other workers through the coordinator from now on.

        Args:
            coordinator: Lists the members.
        """
        self.directory.join(coordinator)
        self.control.start()
        self.collector.start()
        self.joined = True

    @property
    def incarnation(self) -> int:
        """Incarnation of this worker."""
        return self.me.incarnation

    @property
    def closed(self) -> bool:
        """Whether no call can be made any more."""
        return self.caller.closed

    def channel(self, worker: str, deadline: Deadline) -> Channel:
        """Return the channel to another worker, for rpcs of other services.

        Raises:
            WorkerNotFound: No member has that name.
        """
        return self.directory.channel(worker, deadline)

    def suspect(self, worker: str) -> None:
        """Look up a worker again before the next call to it: it did not respond."""
        self.directory.suspect(worker)

    def debug_info(self) -> dict[str, int]:
        """Return counters of calls, threads and references in progress."""
        threads, idle = self.threads.counts()
        return {
            "agent.thread_pool_size": threads,
            "agent.num_idle_threads": idle,
            "agent.client_active_calls": len(self.outstanding),
            "agent.server_active_calls": self.executor.active,
            "agent.server_active_async_calls": len(self.deferred),
            **self.rrefs.owners.counts(),
            **self.rrefs.users.counts(),
            **recorder().counters(),
        }

    def close(self) -> None:
        """Fail the calls under way and end every thread and connection; may be called twice."""
        self.caller.closed = True
        current.uninstall(self)
        self.collectives.close()
        self.collector.close()
        self.control.close()
        self.outstanding.close()
        self.directory.close()
        self.threads.close()
