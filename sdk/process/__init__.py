"""The base of every gradmesh process: configuration, logs, metrics, signals, draining."""

from gradmesh.sdk.process.config import Sections as Sections
from gradmesh.sdk.process.config import load as load
from gradmesh.sdk.process.log import LogConfig as LogConfig
from gradmesh.sdk.process.metrics import MetricsConfig as MetricsConfig
from gradmesh.sdk.process.network import SecurityConfig as SecurityConfig
from gradmesh.sdk.process.process import Lifecycle as Lifecycle
from gradmesh.sdk.process.process import LifecycleConfig as LifecycleConfig
from gradmesh.sdk.process.process import Process as Process
from gradmesh.sdk.process.process import ProcessConfig as ProcessConfig
from gradmesh.sdk.process.setting import AddressInUse as AddressInUse
from gradmesh.sdk.process.setting import ConfigError as ConfigError
from gradmesh.sdk.process.setting import Problem as Problem
from gradmesh.sdk.process.setting import Section as Section
from gradmesh.sdk.process.setting import setting as setting

__all__ = [
    "AddressInUse",
    "ConfigError",
    "Lifecycle",
    "LifecycleConfig",
    "LogConfig",
    "MetricsConfig",
    "Problem",
    "Process",
    "ProcessConfig",
    "Section",
    "Sections",
    "SecurityConfig",
    "load",
    "setting",
]
