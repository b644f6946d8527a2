"""One server's shard of one table: its rows, their places and how gradients change them."""

import threading
import zlib
from typing import final

import numpy as np

from gradmesh.engine.kernels import all_finite, first_outside
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import numpy_dtype
from gradmesh.protos.errors import IdOutOfRange, InvalidRequest, StaleShardMap
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids, ShardMap
from gradmesh.sdk.table.recipe import initializer_of, rule_of
from gradmesh.services.parameter_server.contexts import Slots

_INDEX_BYTES = 4
# Rows handled at once where temporary arrays are needed, so that they stay small.
_CHUNK_ROWS = 1 << 16


@final
class TableShard:
    """The rows of one table that live here.

    Args:
        spec: What the table is.
        shards: Which ids belong to whom.
        shard: Which shard this one is.
    """

    def __init__(self, spec: table_pb2.TableSpec, shards: ShardMap, shard: int) -> None:
        self.spec = spec
        self.steps = 0
        self._initializer = initializer_of(spec.initializer)
        self._rule, self._lr = rule_of(spec.optimizer)
        self.dtype = numpy_dtype(spec.dtype)
        self._ids = _ids_of(spec.rows, shards, shard)
        self._index = np.full(spec.rows, -1, np.int32)
        self._index[self._ids] = np.arange(self._ids.size, dtype=np.int32)
        self._lock = threading.Lock()  # guards _rows, _state and steps
        self._rows = np.empty((self._ids.size, spec.dim), self.dtype)
        self._state: dict[str, Array] = {}
        self.reset()

    @classmethod
    def estimate_bytes(cls, spec: table_pb2.TableSpec, shards: int) -> int:
        """Return about how much memory a shard of the table takes, before any is allocated."""
        rule, _ = rule_of(spec.optimizer)
        width = spec.dim + sum(slot.width for slot in rule.slots(spec.dim))
        row_bytes = width * numpy_dtype(spec.dtype).itemsize + 8
        return -(-spec.rows // shards) * row_bytes + spec.rows * _INDEX_BYTES

    @property
    def row_count(self) -> int:
        """How many rows live here."""
        return int(self._ids.size)

    @property
    def bytes(self) -> int:
        """Memory of rows, optimizer state and index."""
        arrays = (self._rows, self._ids, self._index, *self._state.values())
        return sum(array.nbytes for array in arrays)

    def reset(self) -> None:
        """Put all rows and the optimizer back to the beginning."""
        # Tables with the same seed and other names must not have the same rows.
        seed = self.spec.seed ^ zlib.crc32(self.spec.name.encode()) << 32
        # Drawn in float32 at least, whatever they are rounded to.
        drawn = np.result_type(self.dtype, np.float32)
        with self._lock:
            for begin in range(0, self._ids.size, _CHUNK_ROWS):
                part = slice(begin, begin + _CHUNK_ROWS)
                wide = np.empty(self._rows[part].shape, drawn)
                self._initializer.fill(wide, self._ids[part], seed)
                self._rows[part] = wide
            self._state = self._rule.allocate(self._ids.size, self.spec.dim, self.dtype)
            self.steps = 0

    def slots_of(self, ids: Array) -> Slots:
        """Return the places of ids.

        Raises:
            InvalidRequest: They are not int64 [n].
            IdOutOfRange: One is no row of the table.
            StaleShardMap: One lives on another server.
        """
        name = self.spec.name
        if ids.dtype != np.int64 or ids.ndim != 1:
            raise InvalidRequest(
                f"table {name!r}: ids must be int64 [n], not {ids.dtype} {ids.shape}", table=name
            )
        place = first_outside(ids, self._index.size)
        if place >= 0:
            bad = int(ids[place])
            raise IdOutOfRange(
                f"table {name!r}: id {bad} is not among its rows 0 to {self.spec.rows - 1}",
                table=name,
                id=bad,
            )
        slots = self._index.take(ids, mode="clip").astype(np.int64)
        place = first_outside(slots, self._ids.size)
        if place >= 0:
            bad = int(ids[place])
            raise StaleShardMap(
                f"table {name!r}: id {bad} lives on another server; fetch the shard map and route "
                "again",
                table=name,
                id=bad,
            )
        return slots

    def read(self, slots: Slots, out: Array | None = None) -> Array:
        """Return a copy of rows, in `out` if given."""
        with self._lock:
            # mode="clip" skips the buffering that numpy's own bounds check needs.
            return self._rows.take(slots, axis=0, out=out, mode="clip")

    def check_grads(self, slots: Slots, grads: Array) -> None:
        """Return if gradients fit rows.

        Raises:
            InvalidRequest: They do not, or are no finite numbers.
        """
        name = self.spec.name
        expected = (slots.size, self.spec.dim)
        if grads.shape != expected or grads.dtype != self.dtype:
            raise InvalidRequest(
                f"table {name!r}: gradients must be {self.dtype} {expected}, not {grads.dtype} "
                f"{grads.shape}",
                table=name,
            )
        if not all_finite(grads):
            raise InvalidRequest(f"table {name!r}: a gradient is NaN or infinite", table=name)

    def apply(self, slots: Slots, grads: Array, step: int | None = None) -> None:
        """Change rows by gradients that `check_grads` has passed; no slot twice.

        Args:
            slots: Which rows.
            grads: Their gradients.
            step: Number of this step, from 1. In a run it is the run's: a step that touches no
                row of this shard must count here, too, or rows would depend on the shards' number.
        """
        with self._lock:
            self.steps = self.steps + 1 if step is None else step
            self._rule.update_rows(self._rows, self._state, slots, grads, self._lr, self.steps)


def _ids_of(rows: int, shards: ShardMap, shard: int) -> Ids:
    """Return the ids below `rows` that live on a shard, in order."""
    found = []
    for begin in range(0, rows, _CHUNK_ROWS):
        ids = np.arange(begin, min(begin + _CHUNK_ROWS, rows), dtype=np.int64)
        found.append(ids[shards.shards_of(ids) == shard])
    return np.concatenate(found)
