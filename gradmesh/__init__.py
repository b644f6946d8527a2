"""Hybrid-parallel training of embedding-heavy models as a cluster of gRPC services."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradmesh.launch.local import LocalCluster as LocalCluster

__version__ = "0.1.0"

__all__ = ["LocalCluster", "__version__"]

# Imported on first use: `gradmesh --help` must not wait for numba and grpc.
_HOMES = {"LocalCluster": "gradmesh.launch.local"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradmesh' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
