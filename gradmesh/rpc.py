"""Calls between processes: `gm.rpc.init`, then `gm.rpc_sync`, `gm.rpc_async`, `gm.remote`."""

from gradmesh.sdk.node.node import Node as Node
from gradmesh.sdk.node.start import init as init
from gradmesh.sdk.rpc.api import debug_info as debug_info
from gradmesh.sdk.rpc.api import get_timeout as get_timeout
from gradmesh.sdk.rpc.api import get_worker_info as get_worker_info
from gradmesh.sdk.rpc.api import get_worker_infos as get_worker_infos
from gradmesh.sdk.rpc.api import remote as remote
from gradmesh.sdk.rpc.api import rpc_async as rpc_async
from gradmesh.sdk.rpc.api import rpc_sync as rpc_sync
from gradmesh.sdk.rpc.api import set_timeout as set_timeout
from gradmesh.sdk.rpc.api import wait_for_workers as wait_for_workers
from gradmesh.sdk.rpc.collective import all_gather as all_gather
from gradmesh.sdk.rpc.collective import barrier as barrier
from gradmesh.sdk.rpc.current import RefLeak as RefLeak
from gradmesh.sdk.rpc.current import RpcNotRunning as RpcNotRunning
from gradmesh.sdk.rpc.current import call_group as call_group
from gradmesh.sdk.rpc.ids import WorkerInfo as WorkerInfo
from gradmesh.sdk.rpc.registry import async_execution as async_execution
from gradmesh.sdk.rpc.registry import register as register
from gradmesh.sdk.rpc.registry import register_exception as register_exception
from gradmesh.sdk.rpc.shutdown import shutdown as shutdown

__all__ = [
    "Node",
    "RefLeak",
    "RpcNotRunning",
    "WorkerInfo",
    "all_gather",
    "async_execution",
    "barrier",
    "call_group",
    "debug_info",
    "get_timeout",
    "get_worker_info",
    "get_worker_infos",
    "init",
    "register",
    "register_exception",
    "remote",
    "rpc_async",
    "rpc_sync",
    "set_timeout",
    "shutdown",
    "wait_for_workers",
]
