"""Reading rows where models are served: no membership, no contexts, no writing."""

from gradmesh.sdk.serving.reader import ReadOnly as ReadOnly
from gradmesh.sdk.serving.reader import TableReader as TableReader

__all__ = ["ReadOnly", "TableReader"]
