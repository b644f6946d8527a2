"""One embedding table on the parameter servers."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import numpy_dtype
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids
from gradmesh.sdk.cluster.servers import ParameterServers
from gradmesh.sdk.future import Future
from gradmesh.sdk.table.gradients import BadGradients, fit_grads
from gradmesh.sdk.table.lookup import start_lookup
from gradmesh.sdk.table.metrics import TableMetrics
from gradmesh.sdk.table.push import PushFuture, start_push
from gradmesh.sdk.table.schedule import counts_steps
from gradmesh.sdk.table.table_set import TableSet, WantedIds, as_ids
from gradmesh.sdk.table.wire import LOSSLESS, Wire
from gradmesh.sdk.transport.deadline import Deadline


@final
class Table:
    """A handle to a table; made by `Mesh.table`.

    Args:
        spec: Its specification.
        servers: The servers that hold its rows.
        next_push: Returns (worker, incarnation, sequence) of the next push.
        timeout_s: Default deadline of a call.
        wire: Precision of rows and gradients on the wire.
        metrics: Counts lookups and pushes, for all tables of a mesh.

    Attributes:
        name: Name of the table.
        dim: Elements in a row.
        dtype: Type of the rows.

    Raises:
        InvalidRequest: Another precision on the wire for rows that are not float32.
    """

    def __init__(
        self,
        spec: table_pb2.TableSpec,
        servers: ParameterServers,
        next_push: Callable[[], tuple[str, int, int]],
        timeout_s: float,
        wire: Wire = LOSSLESS,
        metrics: TableMetrics | None = None,
    ) -> None:
        self.spec = spec
        self.servers = servers
        self._next_push = next_push
        self.timeout_s = timeout_s
        # Read at every call; protobuf's fields cost more than attributes.
        self.name: str = spec.name
        self.dim: int = spec.dim
        self.dtype: np.dtype[Any] = numpy_dtype(spec.dtype)
        self.wire = wire
        self.metrics = metrics or TableMetrics()
        if wire != LOSSLESS and self.dtype != np.float32:
            raise InvalidRequest(
                f"table {spec.name!r} has rows of {self.dtype}; only float32 is sent in another "
                "precision",
                table=spec.name,
            )
        self.counts_steps = counts_steps(spec)
        self.bad_gradients = BadGradients.of(spec.bad_gradients)
        self._alone = TableSet([self])

    @property
    def first_id(self) -> int:
        """The smallest valid id: 0, or the smallest int64 for a hash table."""
        return 0 if self.spec.rows else -(2**63)

    @property
    def last_id(self) -> int:
        """The largest valid id."""
        return self.spec.rows - 1 if self.spec.rows else 2**63 - 1

    def lookup(self, ids: object, *, timeout_s: float | None = None) -> Array:
        """Look up rows, outside any context.

        Args:
            ids: Integers of any shape; an array, tensor, pandas Series, list or number.
            timeout_s: Deadline; the mesh's by default.

        Returns:
            The rows, [*ids.shape, dim].

        Raises:
            IdOutOfRange: An id is not a row of the table.
        """
        return self._start(ids, timeout_s)()

    def lookup_async(self, ids: object, *, timeout_s: float | None = None) -> Future[Array]:
        """Start a lookup, as `lookup` does; return the future of its rows.

        Raises:
            IdOutOfRange: An id is not a row of the table; other errors come with the result.
        """
        return self.servers.future(self._start(ids, timeout_s))

    def _start(self, ids: object, timeout_s: float | None) -> Callable[[], Array]:
        """Send a lookup; return a function that waits for its rows."""
        shaped = as_ids(ids, self.name)
        pending = start_lookup(self._alone, _want(shaped), self._deadline(timeout_s))
        if shaped.ndim == 1:
            return pending.gather
        return lambda: pending.gather().reshape(*shaped.shape, self.dim)

    def push(self, ids: object, grads: object, *, timeout_s: float | None = None) -> None:
        """Push gradients, which the servers apply at once and exactly once.

        Args:
            ids: Integers of any shape; repeated ones add up.
            grads: Gradients, [*ids.shape, dim].
            timeout_s: Deadline; the mesh's by default.

        Raises:
            IdOutOfRange: An id is not a row of the table.
            InvalidRequest: Another shape, or a gradient that is not a finite number.
        """
        self._start_push(ids, grads, timeout_s, lasting=True).finish()

    def push_async(
        self, ids: object, grads: object, *, timeout_s: float | None = None
    ) -> Future[None]:
        """Start a push, as `push` does; return a future that completes when it is applied.

        Raises:
            IdOutOfRange: An id is not a row of the table; other errors come with the result.
            InvalidRequest: Another shape, or a gradient that is not a finite number.
        """
        pending = self._start_push(ids, grads, timeout_s, lasting=False)
        return self.servers.future(pending.finish)

    def _start_push(
        self, ids: object, grads: object, timeout_s: float | None, *, lasting: bool
    ) -> PushFuture:
        shaped = as_ids(ids, self.name)
        rows = fit_grads(grads, (*shaped.shape, self.dim), self.name, self.dtype)
        flat = np.ascontiguousarray(rows.reshape(-1, self.dim))
        wanted, deadline = _want(shaped), self._deadline(timeout_s)
        return start_push(self._alone, wanted, flat, self._next_push, deadline, lasting=lasting)

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline.within(timeout_s, self.timeout_s)

    def __repr__(self) -> str:
        rows = self.spec.rows or "any"
        return f"Table({self.name!r}, rows={rows}, dim={self.dim})"


def _want(shaped: Ids) -> WantedIds:
    return WantedIds(shaped.reshape(-1), _starts(shaped.size))


# Most requests have the length of an earlier one.
@lru_cache(maxsize=256)
def _starts(size: int) -> NDArray[np.int64]:
    return np.array((0, size), np.int64)
