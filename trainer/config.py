"""Settings of a trainer process; what it trains is in the [job] table."""

from dataclasses import dataclass
from typing import ClassVar, final

from gradmesh.sdk.node.config import MemberConfig
from gradmesh.sdk.process.network import worker_name
from gradmesh.sdk.process.setting import setting
from gradmesh.trainer.process_group.backend import Backend


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig(MemberConfig):
    """The [trainer] table."""

    section: ClassVar[str] = "trainer"

    name: str = setting(
        "trainer-0", "Name of this trainer, unique in the cluster.", check=worker_name
    )
    backend: Backend = setting(
        "auto",
        "How trainers exchange gradients: shared memory on one host (shm), sockets (tcp), MPI "
        "(mpi), NCCL (nccl), alone (local), or shm or tcp by where they run (auto).",
    )
