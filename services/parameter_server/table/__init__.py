"""Tables as a parameter server keeps them; begin with `TableShard`."""

from gradmesh.services.parameter_server.table.budget import Budget as Budget
from gradmesh.services.parameter_server.table.figures import Figures as Figures
from gradmesh.services.parameter_server.table.index import Handles as Handles
from gradmesh.services.parameter_server.table.shard import TableShard as TableShard

__all__ = ["Budget", "Figures", "Handles", "TableShard"]
