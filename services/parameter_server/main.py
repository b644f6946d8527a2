"""The parameter server process."""

import logging

from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.sdk.autograd.registry import CONTEXTS
from gradmesh.sdk.node.config import RpcConfig
from gradmesh.sdk.node.node import Node
from gradmesh.sdk.process.private import make_files_private
from gradmesh.sdk.process.process import NOT_NEEDED, UNRECOVERABLE, Process, ProcessConfig
from gradmesh.sdk.rpc.servicer import SharedContexts
from gradmesh.sdk.transport.policy import Limits
from gradmesh.services.config import ParameterServerConfig
from gradmesh.services.parameter_server.coordinator_view import CoordinatorView
from gradmesh.services.parameter_server.log import Log, Mode
from gradmesh.services.parameter_server.log.recovery import recover
from gradmesh.services.parameter_server.log.snapshot import LogKeeper
from gradmesh.services.parameter_server.metrics import TableCollector
from gradmesh.services.parameter_server.migration import Mover
from gradmesh.services.parameter_server.servicer import ParameterServerServicer
from gradmesh.services.parameter_server.store import TableStore

_log = logging.getLogger(__name__)

_PARAMETER_SERVER = parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"]

# How often the generation is checked: lookups that wait for a lost trainer end when it does.
_FENCE_EVERY_S = 0.2

# How long a server without buckets answers late calls before it exits.
_LINGER_S = 3.0

# A context unused for longer belongs to a lost worker.
_CONTEXT_IDLE_S = 3600.0

# A snapshot unread for longer belongs to a lost client.
_SNAPSHOT_IDLE_S = 60.0


def run(config: ParameterServerConfig, process: ProcessConfig, rpc: RpcConfig) -> int:
    """Serve until a signal stops the process; return the exit code."""
    # The log and the disk tier hold rows.
    make_files_private()
    with Process(config.name, process, config, rpc) as running:
        life = running.life
        rpc.import_modules()
        view = CoordinatorView()
        log = None
        if config.state_dir is not None and config.durability != "off":
            log = Log(config.state_dir, Mode(config.durability), owner=config.name)
            life.on_drain("log", lambda _: log.close())
        store = TableStore(
            config.name,
            view.describe,
            view.shard_map,
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
        TableCollector(store, running.registry)
        node = Node(
            config,
            "parameter-server",
            process,
            running.registry,
            limits=Limits(threads=config.server_threads, max_frame_bytes=config.max_frame_bytes),
            timeout_s=rpc.timeout_s,
        )
        life.on_drain("node", lambda left_s: node.leave(left_s / 2))
        # Runs first: a lookup that waits for a step would keep its thread, and so the process.
        life.on_drain("waits", lambda _: store.close())
        server = node.serve(
            {
                _PARAMETER_SERVER: ParameterServerServicer(
                    store, view.check_generation, node.agent.openers
                )
            },
            contexts=SharedContexts(store.contexts, CONTEXTS),
        )
        running.answers = server.answers
        connection = node.join(
            server,
            on_lost=lambda: life.stop(UNRECOVERABLE, "another process took this one's name"),
        ).connection
        # Before the first call is served: the generation of the former process has ended.
        store.fence(connection.generation)
        connection.watch_contexts(store.contexts)
        connection.watch_contexts(store.checkpointing.snapshots)
        view.join(connection)
        mover = Mover(store, connection)
        life.on_drain("mover", mover.close)
        running.is_ready = True
        _log.info("serving", extra={"address": server.address})
        while life.wait(_FENCE_EVERY_S) is None:
            store.fence(connection.generation)
            store.contexts.release_idle(_CONTEXT_IDLE_S)
            store.checkpointing.snapshots.release_idle(_SNAPSHOT_IDLE_S)
            if mover.is_emptied(_LINGER_S) and not store.checkpointing.snapshots.count:
                life.stop(NOT_NEEDED, "other servers hold its buckets")
    return life.exit_code
