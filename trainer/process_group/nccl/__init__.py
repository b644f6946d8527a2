"""The nccl backend: ranks with one GPU each. Not run on hardware yet; see docs."""

from gradmesh.trainer.process_group.nccl.group import NcclProcessGroup as NcclProcessGroup

__all__ = ["NcclProcessGroup"]
