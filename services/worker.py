"""The worker process: serves the functions that its modules register, until it is stopped."""

import logging

from gradmesh.sdk.node.config import RpcConfig
from gradmesh.sdk.node.start import init
from gradmesh.sdk.process.process import UNRECOVERABLE, Process, ProcessConfig
from gradmesh.sdk.rpc.shutdown import close
from gradmesh.sdk.transport.policy import Limits, Timeouts
from gradmesh.services.config import WorkerConfig

_log = logging.getLogger(__name__)


def run(config: WorkerConfig, rpc: RpcConfig, process: ProcessConfig) -> int:
    """Serve until a signal stops the process; return the exit code."""
    with Process(config.name, process, config, rpc) as running:
        life = running.life
        rpc.import_modules()
        node = init(
            config.name,
            coordinator=config.coordinator,
            rank=config.rank,
            listen=config.listen,
            advertise=config.advertise,
            replace=config.replace,
            security=process.security,
            transport=process.transport,
            timeouts=Timeouts(join_s=config.join_timeout_s, call_s=rpc.timeout_s),
            limits=Limits(threads=config.server_threads),
            registry=running.registry,
            on_lost=lambda: life.stop(UNRECOVERABLE, "another process took this one's name"),
        )
        life.on_drain("rpc", lambda left_s: close(node.agent, timeout_s=max(left_s / 2, 1e-3)))
        if node.server is not None:
            running.answers = node.server.answers
        running.is_ready = True
        _log.info("serving", extra={"functions": len(node.agent.functions.names())})
        life.wait()
    return life.exit_code
