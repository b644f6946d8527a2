"""A store with a log that can be opened again, as after kill -9, and its contents."""

import itertools

import numpy as np

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.services.parameter_server.log import Log, Mode
from gradmesh.services.parameter_server.log.recovery import recover

_HASH = table_pb2.TABLE_KIND_HASH
_ADAGRAD = table_pb2.Recipe(name="adagrad", settings={"lr": 0.5})


def specs(make):
    lru = {"eviction": table_pb2.Recipe(name="lru"), "max_bytes": 4096 * 400}
    often = table_pb2.Recipe(name="frequency", settings={"count": 2})
    ttl = table_pb2.Recipe(name="ttl", settings={"steps": 3})
    return [
        make.spec("dense", rows=60, optimizer=_ADAGRAD),
        make.spec("hash", rows=0, kind=_HASH, optimizer=_ADAGRAD),
        make.spec("lru", rows=0, kind=_HASH, **lru),
        make.spec("often", rows=0, kind=_HASH, admission=often),
        make.spec("ttl", rows=0, kind=_HASH, eviction=ttl),
    ]


class Server:
    """A store with a log that can be opened again, as after kill -9."""

    def __init__(self, make, folder, mode=Mode.OS, shards=None):
        self._make, self.folder, self._mode = make, folder, mode
        self._shards = shards or make.shards()
        self._log = None
        self.store = None
        self.counter = itertools.count(1)
        self.open()

    def open(self):
        if self._log is not None:
            self._log.close()
        self._log = Log(self.folder, self._mode, owner="ps-0", segment_bytes=2000)
        self.store = self._make.store(
            *specs(self._make), max_bytes=1 << 26, log=self._log, shards=self._shards
        )
        return recover(self.store)

    def close(self):
        self._log.close()

    def lookup(self, table, ids, context=None, mark=None):
        (rows,) = self.store.lookup(
            [table],
            [np.asarray(ids, np.int64)],
            self._make.deadline(),
            epoch=1,
            context=context,
            number=1,
            mark=mark,
        )
        return rows

    def push(self, table, ids, value, number=None, names=None):
        ids = np.asarray(ids, np.int64)
        arrays = [ids, np.full((ids.size, 3), value, np.float32)]
        names = names or [table]
        sender = ("w", 1, number or next(self.counter))
        return self.store.push(sender, names, arrays * len(names), 1, self._make.deadline())

    def contribute(self, table, ids, value, mark=None):
        context = self._make.context(next(self.counter))
        self.lookup(table, ids, context, mark)
        self.store.backward(context, 1, [np.full((len(ids), 3), value, np.float32)])
        return self.store.apply(context, mark)


def contents(store):
    """The full state of a table, as comparable values."""
    found = {}
    for table in store.tables():
        rows = {}
        for ids, values, state in table.blocks():
            parts = [values, *(state[name] for name in sorted(state))]
            for place, id_ in enumerate(ids.tolist()):
                rows[id_] = tuple(part[place].tobytes() for part in parts)
        scan = table.changes._scan
        memory = {n: a.tobytes() for n, a in scan.bucket_state().items()}
        marks = {}
        if table.kind == "hash":
            for piece in range(scan.pieces):
                ids, _, held = scan.piece(piece, 0)
                marks.update(zip(ids.tolist(), held.tolist(), strict=True))
        found[table.spec.name] = rows, table.steps, memory, marks
    return found
