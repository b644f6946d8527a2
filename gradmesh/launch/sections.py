"""The tables of settings that the processes of a cluster read."""

from gradmesh.sdk.process.lifecycle import LifecycleConfig
from gradmesh.sdk.process.log import LogConfig
from gradmesh.sdk.process.metrics import MetricsConfig
from gradmesh.sdk.process.security import SecurityConfig
from gradmesh.sdk.process.setting import Section
from gradmesh.sdk.process.transport import TransportConfig
from gradmesh.sdk.rpc.config import RpcConfig
from gradmesh.services.coordinator.config import CoordinatorConfig
from gradmesh.services.parameter_server.config import ParameterServerConfig
from gradmesh.services.worker.config import WorkerConfig
from gradmesh.trainer.config import TrainerConfig
from gradmesh.trainer.job.assignment import JOB_SECTIONS

PROCESS_SECTIONS: tuple[type[Section], ...] = (
    SecurityConfig,
    TransportConfig,
    LogConfig,
    MetricsConfig,
    LifecycleConfig,
)
"""What every process reads."""

ROLE_SECTIONS: dict[str, tuple[type[Section], ...]] = {
    "coordinator": (CoordinatorConfig,),
    "parameter-server": (ParameterServerConfig, RpcConfig),
    "trainer": (TrainerConfig, *JOB_SECTIONS, RpcConfig),
    "worker": (WorkerConfig, RpcConfig),
}
"""What each role reads besides; its own table is the first."""

CLUSTER_SECTIONS: tuple[type[Section], ...] = (
    CoordinatorConfig,
    ParameterServerConfig,
    TrainerConfig,
    *JOB_SECTIONS,
    WorkerConfig,
    RpcConfig,
    *PROCESS_SECTIONS,
)
"""All of them, in the order of docs/operations.md."""
