"""Collectives between trainers: one abstract ProcessGroup, one class for each backend.

Reductions are in rank order and bit-identical on all ranks. Errors are in trainer/errors.py.
"""

from gradmesh.trainer.process_group.backend import Backend as Backend
from gradmesh.trainer.process_group.backend import connect as connect
from gradmesh.trainer.process_group.default import default_group as default_group
from gradmesh.trainer.process_group.default import destroy_process_group as destroy_process_group
from gradmesh.trainer.process_group.default import init_process_group as init_process_group
from gradmesh.trainer.process_group.default import is_initialized as is_initialized
from gradmesh.trainer.process_group.default import new_subgroups as new_subgroups
from gradmesh.trainer.process_group.local import LocalProcessGroup as LocalProcessGroup
from gradmesh.trainer.process_group.mpi import MpiProcessGroup as MpiProcessGroup
from gradmesh.trainer.process_group.nccl import NcclProcessGroup as NcclProcessGroup
from gradmesh.trainer.process_group.peer.rendezvous import Endpoint as Endpoint
from gradmesh.trainer.process_group.process_group import ProcessGroup as ProcessGroup
from gradmesh.trainer.process_group.process_group import ReduceOp as ReduceOp
from gradmesh.trainer.process_group.shm import ShmProcessGroup as ShmProcessGroup
from gradmesh.trainer.process_group.store import FileStore as FileStore
from gradmesh.trainer.process_group.store import Store as Store
from gradmesh.trainer.process_group.tcp import TcpProcessGroup as TcpProcessGroup
from gradmesh.trainer.process_group.work import Work as Work

__all__ = [
    "Backend",
    "Endpoint",
    "FileStore",
    "LocalProcessGroup",
    "MpiProcessGroup",
    "NcclProcessGroup",
    "ProcessGroup",
    "ReduceOp",
    "ShmProcessGroup",
    "Store",
    "TcpProcessGroup",
    "Work",
    "connect",
    "default_group",
    "destroy_process_group",
    "init_process_group",
    "is_initialized",
    "new_subgroups",
]
