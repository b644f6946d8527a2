"""The mpi backend: ranks that mpiexec has started."""

from gradmesh.trainer.process_group.mpi.group import MpiProcessGroup as MpiProcessGroup

__all__ = ["MpiProcessGroup"]
