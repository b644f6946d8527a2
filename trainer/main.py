"""The trainer process."""

import logging

from gradmesh.sdk.node.config import RpcConfig
from gradmesh.sdk.node.node import Node
from gradmesh.sdk.process.network import SecurityConfig, split
from gradmesh.sdk.process.process import UNRECOVERABLE, Process, ProcessConfig
from gradmesh.sdk.table.metrics import TableMetrics
from gradmesh.sdk.transport.policy import Limits
from gradmesh.trainer.config import TrainerConfig
from gradmesh.trainer.job.job import Job
from gradmesh.trainer.job.spec import JobSpec
from gradmesh.trainer.process_group import Endpoint

_log = logging.getLogger(__name__)

_SERVER_THREADS = 4


def run(config: TrainerConfig, spec: JobSpec, process: ProcessConfig, rpc: RpcConfig) -> int:
    """Train until the job is done or the process must stop; return the exit code."""
    parts = (spec.job, spec.data, spec.model)
    with Process(config.name, process, config, *parts, rpc) as running:
        life = running.life
        rpc.import_modules()
        node = Node(
            config,
            "trainer",
            process,
            running.registry,
            limits=Limits(threads=_SERVER_THREADS),
            timeout_s=rpc.timeout_s,
        )
        life.on_drain("node", lambda left_s: node.leave(left_s / 2))
        server = node.serve()
        running.answers = server.answers
        mesh = node.join(
            server,
            table_metrics=TableMetrics(running.registry),
            on_lost=lambda: life.stop(UNRECOVERABLE, "another process took this one's name"),
        )
        running.is_ready = True
        figures = Job(
            mesh,
            spec,
            endpoint=_endpoint(config, process.security),
            join_timeout_s=config.join_timeout_s,
            backend=config.backend,
            is_stopping=lambda: life.stopping,
        ).run()
        if figures is not None:
            _log.info("done", extra={"figures": figures})
    return life.exit_code


def _endpoint(config: TrainerConfig, security: SecurityConfig) -> Endpoint:
    """Return the address for peers of the process group: the host that this trainer serves on."""
    advertised = split(config.advertise)[0] if config.advertise else ""
    host = split(config.listen)[0]
    return Endpoint(listen_host=host, advertise_host=advertised, security=security)
