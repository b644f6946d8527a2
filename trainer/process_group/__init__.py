"""Collectives between trainers: one abstract ProcessGroup, one class for each backend.

Reductions are in rank order and bit-identical on all ranks. Errors are in trainer/errors.py.
"""

from gradmesh.trainer.process_group.backend import Backend as Backend
from gradmesh.trainer.process_group.backend import connect as connect
from gradmesh.trainer.process_group.local import LocalProcessGroup as LocalProcessGroup
from gradmesh.trainer.process_group.mpi import MpiProcessGroup as MpiProcessGroup
from gradmesh.trainer.process_group.nccl import NcclProcessGroup as NcclProcessGroup
from gradmesh.trainer.process_group.process_group import ProcessGroup as ProcessGroup
from gradmesh.trainer.process_group.process_group import ReduceOp as ReduceOp
from gradmesh.trainer.process_group.shm import ShmProcessGroup as ShmProcessGroup
from gradmesh.trainer.process_group.store import FileStore as FileStore
from gradmesh.trainer.process_group.store import Store as Store
from gradmesh.trainer.process_group.tcp import Endpoint as Endpoint
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
]
