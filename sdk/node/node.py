"""Node: a member of the mesh that serves, built of agent, autograd, server and membership."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import final

from google.protobuf.descriptor import ServiceDescriptor
from prometheus_client import CollectorRegistry

from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.autograd.participant import AutogradParticipant
from gradmesh.sdk.autograd.registry import CONTEXTS
from gradmesh.sdk.cluster.membership import Role
from gradmesh.sdk.mesh.connect import join_mesh
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.nn import remote_module
from gradmesh.sdk.node.config import MemberConfig
from gradmesh.sdk.optim import owner
from gradmesh.sdk.optim.owner import StepLeadMetrics
from gradmesh.sdk.optim.step import StepHandler
from gradmesh.sdk.process.local_token import with_local_token
from gradmesh.sdk.process.process import ProcessConfig
from gradmesh.sdk.process.setting import ConfigError, Problem
from gradmesh.sdk.rpc import builtin, current
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.current import RpcNotRunning
from gradmesh.sdk.rpc.registry import REGISTRY, Registry
from gradmesh.sdk.rpc.servicer import ContextHolder, NoContexts, OwnerServicer
from gradmesh.sdk.table.metrics import TableMetrics
from gradmesh.sdk.transport.channel import Dialer
from gradmesh.sdk.transport.identity import MemberIdentity
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.policy import Limits, Timeouts
from gradmesh.sdk.transport.security import TicketCheck
from gradmesh.sdk.transport.server import Server

# Register the functions that every node serves by name.
_SERVED = (builtin, remote_module, owner)
_OWNER = owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]
_NO_SERVICES: Mapping[ServiceDescriptor, object] = MappingProxyType({})


@final
class Node:
    """A member of the mesh that makes and serves calls, so that A → B → A works.

    Construct it, then call `serve`, then `join`. `leave` ends it at any stage. The constructor
    opens no socket.

    Args:
        config: Name and addresses.
        role: Role of this process in the mesh.
        process: Certificates, token and lanes.
        registry: Registry to export metrics to; None exports none.
        limits: Calls of other workers that run concurrently, and the size of messages.
        timeout_s: Default timeout of a call; `math.inf` for none.
        functions: The functions that other workers may call.
        rank: Rank among the workers, if it has one.
        is_current: Whether `gm.rpc_sync` and distributed autograd use this node; at most one node
            of a process can be current.

    Attributes:
        agent: Makes and serves calls, and holds references.
        server: The server, once `serve` was called.

    Raises:
        RpcNotRunning: The process has a current node already.
    """

    def __init__(
        self,
        config: MemberConfig,
        role: Role,
        process: ProcessConfig,
        registry: CollectorRegistry | None,
        *,
        limits: Limits,
        timeout_s: float,
        functions: Registry = REGISTRY,
        rank: int | None = None,
        is_current: bool = True,
    ) -> None:
        self._config, self._role = config, role
        security = with_local_token(process.security, config.coordinator)
        self._process, self._registry = replace(process, security=security), registry
        self._limits = limits
        identity = MemberIdentity(config.name)
        self._dial = Dialer(
            security=security,
            lane=process.transport.lane,
            metrics=RpcMetrics("client", registry),
            max_frame_bytes=limits.max_frame_bytes,
        ).of_process(identity)
        self._check = TicketCheck(process.security, identity)
        self.agent = Agent(
            config.name,
            identity.incarnation,
            functions,
            self._dial,
            rank=rank,
            timeout_s=timeout_s,
            threads=limits.threads,
            inline=max(1, limits.threads // 2),
            leave=self.leave,
        )
        self._mesh: Mesh | None = None
        self.server: Server | None = None
        self._ends = ExitStack()
        self._participant: AutogradParticipant | None = None
        if is_current:
            current.install(self.agent)
            # The recorder of calls is process-wide, so only the current node records.
            step = StepHandler(self.agent, CONTEXTS).step
            self._participant = AutogradParticipant(self.agent, step, CONTEXTS)
            self.before_leave(self._participant.close)
            if registry is not None:
                StepLeadMetrics(registry)

    @property
    def name(self) -> str:
        """Name of this worker."""
        return self.agent.name

    @property
    def mesh(self) -> Mesh:
        """The mesh, as `gm.connect` returns it.

        Raises:
            RpcNotRunning: The node has not joined yet.
        """
        if self._mesh is None:
            raise RpcNotRunning(f"{self.name} has not joined a mesh yet")
        return self._mesh

    def serve(
        self,
        services: Mapping[ServiceDescriptor, object] = _NO_SERVICES,
        *,
        contexts: ContextHolder | None = None,
    ) -> Server:
        """Start to serve the rpcs of every node, and those of its role.

        Args:
            services: The services of the role.
            contexts: The state of distributed-autograd contexts; by default the contexts that calls
                are recorded in.

        Raises:
            AddressInUse: The address cannot be listened on.
        """
        config, agent, participant = self._config, self.agent, self._participant
        if contexts is None:
            contexts = NoContexts() if participant is None else CONTEXTS
        servicer = OwnerServicer(
            config.name, self._role, agent.incarnation, agent.functions, contexts, agent
        )
        own = {} if participant is None else participant.services
        self.server = server = Server(
            {**services, _OWNER: servicer, **own},
            listen=config.listen,
            setting=f"{config.section}.listen".lstrip("."),
            security=self._process.security,
            transport=self._process.transport,
            threads=self._limits.threads,
            max_frame_bytes=self._limits.max_frame_bytes,
            registry=self._registry,
            check=self._check if self._process.security.authenticates else None,
        )
        server.start()
        return server

    def join(
        self,
        server: Server,
        *,
        world_size: int = 0,
        timeouts: Timeouts | None = None,
        table_metrics: TableMetrics | None = None,
        on_lost: Callable[[], object] = lambda: None,
    ) -> Mesh:
        """Join the mesh: register with the coordinator and look up the other workers.

        Args:
            server: The result of `serve`.
            world_size: Number of workers that wait for each other at startup; 0 for none.
            timeouts: Deadlines of the mesh; by default `join_timeout_s` of the configuration for
                joining, and for every call to coordinator and parameter servers.
            table_metrics: Counts lookups and pushes.
            on_lost: Called once if another process takes this one's name.

        Raises:
            Unreachable: No coordinator answered in time.
            NameTaken: A live process holds the name.
            Unauthenticated: The token is missing or wrong.
            ConfigError: Only one of this process and the coordinator authenticates callers.
        """
        config = self._config
        join_s = config.join_timeout_s
        self._mesh = mesh = join_mesh(
            config.coordinator,
            name=config.name,
            role=self._role,
            address=config.advertise or server.address,
            incarnation=self.agent.incarnation,
            rank=self.agent.info.rank,
            world_size=world_size,
            replace=config.replace,
            dial=self._dial,
            timeouts=timeouts or Timeouts(join_s=join_s, call_s=join_s),
            table_metrics=table_metrics,
            on_lost=on_lost,
        )
        self._check_authentication(mesh.connection.authenticates)
        mesh.connection.watch_contexts(self.agent.rrefs.owners)
        self.agent.openers.join(mesh.connection.coordinator)
        self.agent.join(mesh.connection.coordinator)
        if self._participant is not None:
            self._participant.join(mesh)
        return mesh

    def _check_authentication(self, coordinators: bool) -> None:
        """Check that this process authenticates callers if the coordinator does, and only then.

        Raises:
            ConfigError: Only one of the two does.
        """
        ours = self._process.security.authenticates
        if ours == coordinators:
            return
        who = "this process, but not the coordinator," if ours else "only the coordinator"
        text = (
            f"{who} authenticates callers, so calls between members would be refused or not "
            "checked; give both a token, or security.certificate_roles = true"
        )
        raise ConfigError([Problem("security.token_file", text)])

    def before_leave(self, end: Callable[[], object]) -> None:
        """Register a function to call when this node leaves, while peers are still reachable."""
        self._ends.callback(end)

    def leave(self, grace_s: float) -> None:
        """Stop serving within `grace_s`, then leave the mesh; may be called twice.

        In this order, because peers that still wait for a reply treat a member that has left as
        lost.
        """
        if self.agent.closed:
            return
        self._ends.close()
        if self.server is not None:
            self.server.drain(grace_s)
        if self._mesh is not None:
            self._mesh.close()
        self.agent.close()
