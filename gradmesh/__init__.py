"""Hybrid-parallel training of embedding-heavy models as a cluster of gRPC services."""

__version__ = "0.1.0"
