"""The specification of a table and its statistics on the servers, for operators."""

from dataclasses import dataclass
from typing import Any, final

from gradmesh.protos.common.v1 import array_pb2
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.cluster.servers import ParameterServers
from gradmesh.sdk.transport.deadline import Deadline

_STATS = (
    "rows",
    "bytes",
    "steps",
    "expected_row_bytes",
    "actual_row_bytes",
    "file_bytes",
    "lookups",
    "ids",
    "hit_rate",
    "admitted",
    "refused",
    "evicted",
    "dropped",
    "staleness",
)


@final
@dataclass(frozen=True, slots=True)
class TableReport:
    """A table on all servers.

    Attributes:
        spec: Its specification.
        servers: The stats of each server, by name.
    """

    spec: dict[str, Any]
    servers: dict[str, dict[str, Any]]

    def total(self, stat: str) -> int:
        """Return the sum of a stat over all servers."""
        return sum(int(server[stat]) for server in self.servers.values())


def describe_spec(spec: table_pb2.TableSpec) -> dict[str, Any]:
    """Return a specification as plain values and text."""
    dtype = array_pb2.ElementType.Name(spec.dtype).removeprefix("ELEMENT_TYPE_").lower()
    return {
        "name": spec.name,
        "kind": "hash" if spec.kind == table_pb2.TABLE_KIND_HASH else "dense",
        "rows": spec.rows,
        "dim": spec.dim,
        "dtype": dtype,
        "seed": spec.seed,
        "max_bytes": spec.max_bytes,
        "hot_bytes": spec.hot_bytes,
    } | {
        part: _recipe(getattr(spec, part))
        for part in ("initializer", "optimizer", "schedule", "admission", "eviction")
    }


def _recipe(recipe: table_pb2.Recipe) -> str:
    settings = ", ".join(f"{name}={value:g}" for name, value in sorted(recipe.settings.items()))
    return f"{recipe.name}({settings})" if recipe.name else ""


def inspect_table(servers: ParameterServers, name: str, deadline: Deadline) -> TableReport:
    """Return the statistics of a table on all servers.

    Raises:
        TableNotFound: There is none of that name.
    """
    shards = servers.refresh(deadline)
    request = pb.InspectTableRequest(table=name)
    requests = dict.fromkeys(range(len(shards.names)), request)
    replies = servers.call_each(shards, "InspectTable", requests, deadline)
    found = {
        shards.names[shard]: {stat: getattr(reply, stat) for stat in _STATS}
        for shard, reply in replies.items()
    }
    return TableReport(describe_spec(replies[0].spec), found)
