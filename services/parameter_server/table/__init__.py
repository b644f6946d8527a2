"""The tables of a parameter server; read `TableShard` first."""

from gradmesh.services.parameter_server.table.index import Handles as Handles
from gradmesh.services.parameter_server.table.memory import Budget as Budget
from gradmesh.services.parameter_server.table.shard import TableShard as TableShard
from gradmesh.services.parameter_server.table.stats import TableStats as TableStats

__all__ = ["Budget", "Handles", "TableShard", "TableStats"]
