"""Compiled kernels; each name loads its file, and with it numba, on first use.

Importing the engine must not cost numba's import time for programs that never look up a row.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradmesh.engine.kernels import bucket_index as bucket_index
    from gradmesh.engine.kernels import clock as clock
    from gradmesh.engine.kernels import fused as fused
    from gradmesh.engine.kernels import norm as norm
    from gradmesh.engine.kernels import rank_bits as rank_bits
    from gradmesh.engine.kernels import sketch as sketch
    from gradmesh.engine.kernels import update as update
    from gradmesh.engine.kernels.bag import bag_max as bag_max
    from gradmesh.engine.kernels.bag import bag_max_backward as bag_max_backward
    from gradmesh.engine.kernels.bag import bag_sum as bag_sum
    from gradmesh.engine.kernels.bag import bag_sum_backward as bag_sum_backward
    from gradmesh.engine.kernels.bag import bag_weights_backward as bag_weights_backward
    from gradmesh.engine.kernels.bag import interleave as interleave
    from gradmesh.engine.kernels.fused import erf as erf
    from gradmesh.engine.kernels.hashing import IdMap as IdMap
    from gradmesh.engine.kernels.hashing import has_repeats as has_repeats
    from gradmesh.engine.kernels.hashing import unique_inverse as unique_inverse
    from gradmesh.engine.kernels.initializer import init_normal as init_normal
    from gradmesh.engine.kernels.initializer import init_uniform as init_uniform
    from gradmesh.engine.kernels.route import route_ids as route_ids
    from gradmesh.engine.kernels.route import route_one as route_one
    from gradmesh.engine.kernels.rows import all_finite as all_finite
    from gradmesh.engine.kernels.rows import check_index as check_index
    from gradmesh.engine.kernels.rows import coalesce as coalesce
    from gradmesh.engine.kernels.rows import copy_in as copy_in
    from gradmesh.engine.kernels.rows import copy_marked as copy_marked
    from gradmesh.engine.kernels.rows import copy_out as copy_out
    from gradmesh.engine.kernels.rows import finite_copy as finite_copy
    from gradmesh.engine.kernels.rows import gather as gather
    from gradmesh.engine.kernels.rows import gather_columns as gather_columns
    from gradmesh.engine.kernels.rows import scatter_add as scatter_add
    from gradmesh.engine.kernels.rows import scatter_sgd as scatter_sgd
    from gradmesh.engine.kernels.warm import warm_up as warm_up

_HOMES = {
    "IdMap": "hashing",
    "all_finite": "rows",
    "bag_max": "bag",
    "bag_max_backward": "bag",
    "bag_sum": "bag",
    "bag_sum_backward": "bag",
    "bag_weights_backward": "bag",
    "check_index": "rows",
    "coalesce": "rows",
    "copy_in": "rows",
    "copy_marked": "rows",
    "copy_out": "rows",
    "erf": "fused",
    "finite_copy": "rows",
    "gather": "rows",
    "gather_columns": "rows",
    "has_repeats": "hashing",
    "init_normal": "initializer",
    "init_uniform": "initializer",
    "interleave": "bag",
    "route_ids": "route",
    "route_one": "route",
    "scatter_add": "rows",
    "scatter_sgd": "rows",
    "unique_inverse": "hashing",
    "warm_up": "warm",
}

_FILES = (
    "bucket_index",
    "clock",
    "fused",
    "norm",
    "rank_bits",
    "sketch",
    "update",
)

__all__ = [
    "IdMap",
    "all_finite",
    "bag_max",
    "bag_max_backward",
    "bag_sum",
    "bag_sum_backward",
    "bag_weights_backward",
    "bucket_index",
    "check_index",
    "clock",
    "coalesce",
    "copy_in",
    "copy_marked",
    "copy_out",
    "erf",
    "finite_copy",
    "fused",
    "gather",
    "gather_columns",
    "has_repeats",
    "init_normal",
    "init_uniform",
    "interleave",
    "norm",
    "rank_bits",
    "route_ids",
    "route_one",
    "scatter_add",
    "scatter_sgd",
    "sketch",
    "unique_inverse",
    "update",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    if name in _FILES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
