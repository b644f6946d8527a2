"""The trainer process."""

import logging
import time

from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.autograd.contexts import CONTEXTS
from gradmesh.sdk.autograd.station import Station
from gradmesh.sdk.mesh.connect import connect
from gradmesh.sdk.owner.registry import REGISTRY
from gradmesh.sdk.owner.servicer import OwnerServicer
from gradmesh.sdk.process.address import split
from gradmesh.sdk.process.lifecycle import UNRECOVERABLE
from gradmesh.sdk.process.process import Process, ProcessConfig
from gradmesh.sdk.rpc import current
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.config import RpcConfig
from gradmesh.sdk.rpc.start import dialer
from gradmesh.sdk.table.metrics import TableMetrics
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.server import Server
from gradmesh.trainer.config import TrainerConfig
from gradmesh.trainer.job.assignment import Assignment
from gradmesh.trainer.job.job import Job
from gradmesh.trainer.process_group import Endpoint

_log = logging.getLogger(__name__)

_OWNER = owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]
_SERVER_THREADS = 4


def run(
    config: TrainerConfig, assignment: Assignment, process: ProcessConfig, rpc: RpcConfig
) -> int:
    """Train until the job is done or the process is told to stop; return the exit code."""
    parts = (assignment.job, assignment.data, assignment.model)
    with Process(config.name, process, config, *parts, rpc) as running:
        life = running.life
        rpc.import_modules()
        incarnation = time.time_ns()
        metrics = RpcMetrics("client", running.registry)
        agent = Agent(
            config.name,
            incarnation,
            REGISTRY,
            dialer(security=process.security, transport=process.transport, metrics=metrics),
            threads=_SERVER_THREADS,
            inline=_SERVER_THREADS // 2,
            timeout_s=rpc.timeout_s,
        )
        current.install(agent)
        life.on_drain("rpc", lambda _: agent.close())
        station = Station(agent)
        agent.before_close(station.close)
        owner = OwnerServicer(config.name, "trainer", incarnation, REGISTRY, CONTEXTS, agent)
        server = Server(
            {_OWNER: owner, **station.services},
            listen=config.listen,
            setting="trainer.listen",
            security=process.security,
            transport=process.transport,
            threads=_SERVER_THREADS,
            registry=running.registry,
        )
        life.on_drain("server", server.drain)
        server.start()
        mesh = connect(
            config.coordinator,
            name=config.name,
            role="trainer",
            address=config.advertise or server.address,
            incarnation=incarnation,
            replace=config.replace,
            security=process.security,
            lane=process.transport.lane,
            metrics=metrics,
            table_metrics=TableMetrics(running.registry),
            timeout_s=config.join_timeout_s,
            on_lost=lambda: life.stop(UNRECOVERABLE, "another process took this one's name"),
        )
        life.on_drain("membership", lambda _: mesh.close())
        agent.join(mesh)
        station.join(mesh)
        running.is_ready = True
        figures = Job(
            mesh,
            assignment,
            endpoint=_endpoint(config),
            join_timeout_s=config.join_timeout_s,
            backend=config.backend,
            is_stopping=lambda: life.stopping,
        ).run()
        if figures is not None:
            _log.info("done", extra={"figures": figures})
    return life.exit_code


def _endpoint(config: TrainerConfig) -> Endpoint:
    """Return where peers of the process group reach this trainer: the host it serves on."""
    advertised = split(config.advertise)[0] if config.advertise else ""
    return Endpoint(listen_host=split(config.listen)[0], advertise_host=advertised)
