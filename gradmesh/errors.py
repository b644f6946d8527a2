"""Every exception that a program can catch, in one tree.

    GradmeshError
    ├── MeshError             crosses the wire: a call failed, here or on another process;
    │                         docs/errors.md lists status, retry and remedy of each
    ├── ConfigError, AddressInUse                              settings
    ├── DataError, TrainingDiverged, CodeNotTrusted            a training job
    ├── CollectiveTimeout, PeerLost, … GroupClosed             a process group
    ├── ReductionError, InputsExhausted                        DDP
    ├── ShapeError, DtypeError, … AnomalyError                 tensors and gradients
    ├── RpcNotRunning, RefLeak, ReadOnly                       the state of this process
    └── ClusterExists, ClusterFailed, … StateInUse, UnsafeFolder   local clusters

Each is also a builtin exception: the one that torch or Python raises in the same case.
"""

from gradmesh.base_error import GradmeshError as GradmeshError
from gradmesh.engine.backend.blas import BlasUnavailable as BlasUnavailable
from gradmesh.engine.errors import AnomalyError as AnomalyError
from gradmesh.engine.errors import DeviceError as DeviceError
from gradmesh.engine.errors import DeviceUnavailable as DeviceUnavailable
from gradmesh.engine.errors import DimError as DimError
from gradmesh.engine.errors import DtypeError as DtypeError
from gradmesh.engine.errors import GradientError as GradientError
from gradmesh.engine.errors import GraphReleased as GraphReleased
from gradmesh.engine.errors import InplaceError as InplaceError
from gradmesh.engine.errors import ShapeError as ShapeError
from gradmesh.launch.errors import CannotScale as CannotScale
from gradmesh.launch.errors import ClusterExists as ClusterExists
from gradmesh.launch.errors import ClusterFailed as ClusterFailed
from gradmesh.launch.errors import NoCluster as NoCluster
from gradmesh.launch.errors import StateInUse as StateInUse
from gradmesh.protos.errors import BackwardAborted as BackwardAborted
from gradmesh.protos.errors import BackwardFailed as BackwardFailed
from gradmesh.protos.errors import BaseLost as BaseLost
from gradmesh.protos.errors import Cancelled as Cancelled
from gradmesh.protos.errors import CheckpointCorrupt as CheckpointCorrupt
from gradmesh.protos.errors import ContextReleased as ContextReleased
from gradmesh.protos.errors import DeadlineExceeded as DeadlineExceeded
from gradmesh.protos.errors import Draining as Draining
from gradmesh.protos.errors import Forbidden as Forbidden
from gradmesh.protos.errors import FunctionNotFound as FunctionNotFound
from gradmesh.protos.errors import GradientMissing as GradientMissing
from gradmesh.protos.errors import IdOutOfRange as IdOutOfRange
from gradmesh.protos.errors import InternalError as InternalError
from gradmesh.protos.errors import InvalidFrame as InvalidFrame
from gradmesh.protos.errors import InvalidRequest as InvalidRequest
from gradmesh.protos.errors import JobDone as JobDone
from gradmesh.protos.errors import KeyConflict as KeyConflict
from gradmesh.protos.errors import KeyMissing as KeyMissing
from gradmesh.protos.errors import LaneUnavailable as LaneUnavailable
from gradmesh.protos.errors import LimitExceeded as LimitExceeded
from gradmesh.protos.errors import LookupNotFound as LookupNotFound
from gradmesh.protos.errors import MeshError as MeshError
from gradmesh.protos.errors import NameTaken as NameTaken
from gradmesh.protos.errors import NestedTooDeep as NestedTooDeep
from gradmesh.protos.errors import NotMember as NotMember
from gradmesh.protos.errors import Overloaded as Overloaded
from gradmesh.protos.errors import ProtocolMismatch as ProtocolMismatch
from gradmesh.protos.errors import RefNotFound as RefNotFound
from gradmesh.protos.errors import RemoteFailure as RemoteFailure
from gradmesh.protos.errors import ReshardAborted as ReshardAborted
from gradmesh.protos.errors import ReshardUnderWay as ReshardUnderWay
from gradmesh.protos.errors import Retry as Retry
from gradmesh.protos.errors import RoundOpen as RoundOpen
from gradmesh.protos.errors import RunLost as RunLost
from gradmesh.protos.errors import SendNotFound as SendNotFound
from gradmesh.protos.errors import ShardMismatch as ShardMismatch
from gradmesh.protos.errors import ShardNotReady as ShardNotReady
from gradmesh.protos.errors import SnapshotLost as SnapshotLost
from gradmesh.protos.errors import StaleGeneration as StaleGeneration
from gradmesh.protos.errors import StaleShardMap as StaleShardMap
from gradmesh.protos.errors import StepPending as StepPending
from gradmesh.protos.errors import StoreFull as StoreFull
from gradmesh.protos.errors import TableConflict as TableConflict
from gradmesh.protos.errors import TableNotFound as TableNotFound
from gradmesh.protos.errors import TicketRejected as TicketRejected
from gradmesh.protos.errors import Unauthenticated as Unauthenticated
from gradmesh.protos.errors import Unreachable as Unreachable
from gradmesh.protos.errors import WorkerLost as WorkerLost
from gradmesh.protos.errors import WorkerNotFound as WorkerNotFound
from gradmesh.sdk.process.private import UnsafeFolder as UnsafeFolder
from gradmesh.sdk.process.setting import AddressInUse as AddressInUse
from gradmesh.sdk.process.setting import ConfigError as ConfigError
from gradmesh.sdk.rpc.current import RefLeak as RefLeak
from gradmesh.sdk.rpc.current import RpcNotRunning as RpcNotRunning
from gradmesh.sdk.serving import ReadOnly as ReadOnly
from gradmesh.trainer.errors import BackendMissing as BackendMissing
from gradmesh.trainer.errors import CodeNotTrusted as CodeNotTrusted
from gradmesh.trainer.errors import CollectiveMismatch as CollectiveMismatch
from gradmesh.trainer.errors import CollectiveTimeout as CollectiveTimeout
from gradmesh.trainer.errors import DataError as DataError
from gradmesh.trainer.errors import GraphChanged as GraphChanged
from gradmesh.trainer.errors import GroupAborted as GroupAborted
from gradmesh.trainer.errors import GroupClosed as GroupClosed
from gradmesh.trainer.errors import HandshakeRefused as HandshakeRefused
from gradmesh.trainer.errors import InputsExhausted as InputsExhausted
from gradmesh.trainer.errors import MissingGradient as MissingGradient
from gradmesh.trainer.errors import NoDefaultGroup as NoDefaultGroup
from gradmesh.trainer.errors import PeerLost as PeerLost
from gradmesh.trainer.errors import ReductionError as ReductionError
from gradmesh.trainer.errors import RepeatedGradient as RepeatedGradient
from gradmesh.trainer.errors import TrainersMissing as TrainersMissing
from gradmesh.trainer.errors import TrainingDiverged as TrainingDiverged
from gradmesh.trainer.errors import UnfinishedReduction as UnfinishedReduction

__all__ = [
    "AddressInUse",
    "AnomalyError",
    "BackendMissing",
    "BackwardAborted",
    "BackwardFailed",
    "BaseLost",
    "BlasUnavailable",
    "Cancelled",
    "CannotScale",
    "CheckpointCorrupt",
    "ClusterExists",
    "ClusterFailed",
    "CodeNotTrusted",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "ConfigError",
    "ContextReleased",
    "DataError",
    "DeadlineExceeded",
    "DeviceError",
    "DeviceUnavailable",
    "DimError",
    "Draining",
    "DtypeError",
    "Forbidden",
    "FunctionNotFound",
    "GradientError",
    "GradientMissing",
    "GradmeshError",
    "GraphChanged",
    "GraphReleased",
    "GroupAborted",
    "GroupClosed",
    "HandshakeRefused",
    "IdOutOfRange",
    "InplaceError",
    "InputsExhausted",
    "InternalError",
    "InvalidFrame",
    "InvalidRequest",
    "JobDone",
    "KeyConflict",
    "KeyMissing",
    "LaneUnavailable",
    "LimitExceeded",
    "LookupNotFound",
    "MeshError",
    "MissingGradient",
    "NameTaken",
    "NestedTooDeep",
    "NoCluster",
    "NoDefaultGroup",
    "NotMember",
    "Overloaded",
    "PeerLost",
    "ProtocolMismatch",
    "ReadOnly",
    "ReductionError",
    "RefLeak",
    "RefNotFound",
    "RemoteFailure",
    "RepeatedGradient",
    "ReshardAborted",
    "ReshardUnderWay",
    "Retry",
    "RoundOpen",
    "RpcNotRunning",
    "RunLost",
    "SendNotFound",
    "ShapeError",
    "ShardMismatch",
    "ShardNotReady",
    "SnapshotLost",
    "StaleGeneration",
    "StaleShardMap",
    "StateInUse",
    "StepPending",
    "StoreFull",
    "TableConflict",
    "TableNotFound",
    "TicketRejected",
    "TrainersMissing",
    "TrainingDiverged",
    "Unauthenticated",
    "UnfinishedReduction",
    "Unreachable",
    "UnsafeFolder",
    "WorkerLost",
    "WorkerNotFound",
]
