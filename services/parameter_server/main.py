"""The parameter server process."""

import logging
import time

from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.sdk.autograd.contexts import CONTEXTS
from gradmesh.sdk.autograd.station import SharedContexts, Station
from gradmesh.sdk.mesh.connect import connect
from gradmesh.sdk.owner.registry import REGISTRY
from gradmesh.sdk.owner.servicer import OwnerServicer
from gradmesh.sdk.process.lifecycle import NOT_NEEDED, UNRECOVERABLE
from gradmesh.sdk.process.process import Process, ProcessConfig
from gradmesh.sdk.rpc import current
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.config import RpcConfig
from gradmesh.sdk.rpc.start import dialer
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.server import Server
from gradmesh.services.parameter_server.config import ParameterServerConfig
from gradmesh.services.parameter_server.directory import Directory
from gradmesh.services.parameter_server.log import Log, Mode
from gradmesh.services.parameter_server.log.keeper import LogKeeper
from gradmesh.services.parameter_server.log.recovery import recover
from gradmesh.services.parameter_server.metrics import TableMetrics
from gradmesh.services.parameter_server.mover import Mover
from gradmesh.services.parameter_server.servicer import ParameterServerServicer
from gradmesh.services.parameter_server.store import Store

_log = logging.getLogger(__name__)

_OWNER = owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]
_PARAMETER_SERVER = parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"]

# How soon lookups that wait for a lost trainer hear that its generation is over.
_FENCE_EVERY_S = 0.2

# How long a server without buckets answers late calls before it ends.
_LINGER_S = 3.0

# A context that nobody used for so long belongs to a worker that is gone.
_CONTEXT_IDLE_S = 3600.0

# A snapshot that nobody read for so long belongs to a client that is gone.
_SNAPSHOT_IDLE_S = 60.0


def run(config: ParameterServerConfig, process: ProcessConfig, rpc: RpcConfig) -> int:
    """Serve until told to stop; return the exit code."""
    with Process(config.name, process, config, rpc) as running:
        life = running.life
        rpc.import_modules()
        incarnation = time.time_ns()
        directory = Directory()
        log = None
        if config.state_dir is not None and config.durability != "off":
            log = Log(config.state_dir, Mode(config.durability), owner=config.name)
            life.on_drain("log", lambda _: log.close())
        store = Store(
            config.name,
            directory.describe,
            directory.shard_map,
            max_bytes=config.max_store_bytes,
            max_waiters=config.server_threads // 2,
            ssd_path=config.ssd_path,
            max_ssd_bytes=config.max_ssd_bytes,
            log=log,
        )
        if log is not None:
            recover(store)
            keeper = LogKeeper(store, config.snapshot_bytes)
            life.on_drain("log keeper", keeper.close)
        TableMetrics(store, running.registry)
        metrics = RpcMetrics("client", running.registry)
        agent = Agent(
            config.name,
            incarnation,
            REGISTRY,
            dialer(security=process.security, transport=process.transport, metrics=metrics),
            threads=config.server_threads,
            inline=max(1, config.server_threads // 2),
            timeout_s=rpc.timeout_s,
        )
        current.install(agent)
        life.on_drain("rpc", lambda _: agent.close())
        station = Station(agent)
        agent.before_close(station.close)
        contexts = SharedContexts(store.contexts, CONTEXTS)
        owner = OwnerServicer(
            config.name, "parameter-server", incarnation, REGISTRY, contexts, agent
        )
        rows = ParameterServerServicer(store, directory.check_generation)
        server = Server(
            {_PARAMETER_SERVER: rows, _OWNER: owner, **station.services},
            listen=config.listen,
            setting="parameter_server.listen",
            security=process.security,
            transport=process.transport,
            threads=config.server_threads,
            max_frame_bytes=config.max_frame_bytes,
            registry=running.registry,
        )
        life.on_drain("server", server.drain)
        # First of all: a lookup that waits for a step would keep its thread, and so the process.
        life.on_drain("waits", lambda _: store.close())
        server.start()
        mesh = connect(
            config.coordinator,
            name=config.name,
            role="parameter-server",
            address=config.advertise or server.address,
            incarnation=incarnation,
            replace=config.replace,
            security=process.security,
            lane=process.transport.lane,
            metrics=metrics,
            timeout_s=config.join_timeout_s,
            on_lost=lambda: life.stop(UNRECOVERABLE, "another process took this one's name"),
        )
        life.on_drain("membership", lambda _: mesh.close())
        # Before anybody is served: what the former process was part of is over.
        store.fence(mesh.generation)
        mesh.watch_contexts(store.contexts)
        mesh.watch_contexts(store.copies.snapshots)
        directory.join(mesh)
        agent.join(mesh)
        station.join(mesh)
        mover = Mover(store, mesh)
        life.on_drain("mover", mover.close)
        running.is_ready = True
        _log.info("serving", extra={"address": server.address})
        while life.wait(_FENCE_EVERY_S) is None:
            store.fence(mesh.generation)
            store.contexts.release_idle(_CONTEXT_IDLE_S)
            store.copies.snapshots.release_idle(_SNAPSHOT_IDLE_S)
            if mover.is_emptied(_LINGER_S) and not store.copies.snapshots.count:
                life.stop(NOT_NEEDED, "other servers hold its buckets")
    return life.exit_code
