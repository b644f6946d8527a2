"""The shm backend: ranks of one host that share memory."""

from gradmesh.trainer.process_group.shm.group import ShmProcessGroup as ShmProcessGroup

__all__ = ["ShmProcessGroup"]
