"""Read-only access to tables for serving: no membership, no contexts."""

from gradmesh.sdk.serving.reader import ReadOnly as ReadOnly
from gradmesh.sdk.serving.reader import TableReader as TableReader

__all__ = ["ReadOnly", "TableReader"]
