"""Compiled kernels; each name loads its file, and with it numba, on first use.

Importing the engine must not cost numba's import time for programs that never look up a row.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradmesh.engine.kernels import fused as fused
    from gradmesh.engine.kernels import norm as norm
    from gradmesh.engine.kernels import update as update
    from gradmesh.engine.kernels.bag import bag_max as bag_max
    from gradmesh.engine.kernels.bag import bag_max_backward as bag_max_backward
    from gradmesh.engine.kernels.bag import bag_sum as bag_sum
    from gradmesh.engine.kernels.bag import bag_sum_backward as bag_sum_backward
    from gradmesh.engine.kernels.bag import bag_weights_backward as bag_weights_backward
    from gradmesh.engine.kernels.id_map import IdMap as IdMap
    from gradmesh.engine.kernels.initializer import init_normal as init_normal
    from gradmesh.engine.kernels.initializer import init_uniform as init_uniform
    from gradmesh.engine.kernels.rows import check_index as check_index
    from gradmesh.engine.kernels.rows import coalesce as coalesce
    from gradmesh.engine.kernels.rows import gather as gather
    from gradmesh.engine.kernels.rows import scatter_add as scatter_add
    from gradmesh.engine.kernels.rows import scatter_sgd as scatter_sgd
    from gradmesh.engine.kernels.special import erf as erf
    from gradmesh.engine.kernels.unique import unique_inverse as unique_inverse
    from gradmesh.engine.kernels.warm import warm_up as warm_up

_HOMES = {
    "IdMap": "id_map",
    "bag_max": "bag",
    "bag_max_backward": "bag",
    "bag_sum": "bag",
    "bag_sum_backward": "bag",
    "bag_weights_backward": "bag",
    "check_index": "rows",
    "coalesce": "rows",
    "erf": "special",
    "gather": "rows",
    "init_normal": "initializer",
    "init_uniform": "initializer",
    "scatter_add": "rows",
    "scatter_sgd": "rows",
    "unique_inverse": "unique",
    "warm_up": "warm",
}

__all__ = [
    "IdMap",
    "bag_max",
    "bag_max_backward",
    "bag_sum",
    "bag_sum_backward",
    "bag_weights_backward",
    "check_index",
    "coalesce",
    "erf",
    "fused",
    "gather",
    "init_normal",
    "init_uniform",
    "norm",
    "scatter_add",
    "scatter_sgd",
    "unique_inverse",
    "update",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    if name in ("fused", "norm", "update"):
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
