"""The coordinator process."""

import logging

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import coordinator_pb2
from gradmesh.sdk.process.network import write_address
from gradmesh.sdk.process.private import make_files_private
from gradmesh.sdk.process.process import Process, ProcessConfig
from gradmesh.sdk.transport.security import TokenCheck
from gradmesh.sdk.transport.server import Server
from gradmesh.services.config import CoordinatorConfig
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.machine import Machine
from gradmesh.services.coordinator.servicer import CoordinatorServicer

_log = logging.getLogger(__name__)

# How often leases, the join window and deadlines of reshards are checked.
_SWEEP_S = 0.5


def run(config: CoordinatorConfig, process: ProcessConfig) -> int:
    """Serve until a signal stops the process; return the exit code."""
    # The journal holds the names of tables and members.
    make_files_private()
    with Process("coordinator", process, config) as running:
        journal = Journal(config.state_dir)
        running.life.on_drain("journal", lambda _: journal.close())
        machine = Machine(
            parameter_servers=config.parameter_servers,
            trainers=config.trainers,
            lease_s=config.lease_s,
            journal=journal,
            min_trainers=config.min_trainers,
            join_window_s=config.join_window_s,
        )
        servicer = CoordinatorServicer(machine, max_waiters=config.server_threads // 2)
        server = Server(
            {coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]: servicer},
            listen=config.listen,
            setting="coordinator.listen",
            security=process.security,
            transport=process.transport,
            threads=config.server_threads,
            max_frame_bytes=limits.MAX_COORDINATOR_BYTES,
            check=TokenCheck(process.security, machine.sessions.member_of),
            registry=running.registry,
        )
        running.life.on_drain("server", server.drain)
        # Runs first: a call that waits would keep its thread, and so the process.
        running.life.on_drain("waits", lambda _: servicer.close())
        server.start()
        running.answers = server.answers
        write_address(config.address_file, server.address)
        running.is_ready = True
        _log.info("serving", extra={"address": server.address})
        while running.life.wait(min(config.lease_s / 4, _SWEEP_S)) is None:
            servicer.sweep()
    return running.life.exit_code
