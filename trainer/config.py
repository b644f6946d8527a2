"""Settings of a trainer process; the [job] table has those of the training."""

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
        "Backend of the trainers' collectives: shared memory on one host (shm), sockets (tcp), MPI "
        "(mpi), NCCL (nccl), a single trainer (local), or shm or tcp by their hosts (auto).",
    )
