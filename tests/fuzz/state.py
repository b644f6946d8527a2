"""The state that hostile frames must not change, read by an ordinary member, and its digest."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2

from gradmesh.engine import optim
from gradmesh.protos.errors import MeshError
from gradmesh.protos.frame import Frame
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.mesh.connect import join_mesh
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.table.table import Table
from gradmesh.sdk.transport.channel import Channel, Dialer
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.policy import Timeouts
from tests.fuzz.rpc_frames import DIM
from tests.fuzz.words import KEPT, OTHERS, SCRATCH

_ROWS = 64
_IDS = np.arange(_ROWS, dtype=np.int64)
_PATIENCE_S = 30.0
_WITNESS = "witness"


class ClusterState:
    """A member that owns the kept tables.

    Args:
        coordinator: Address of the coordinator.
        security: Its token.
        wait_until: Waits for a condition.
    """

    def __init__(
        self,
        coordinator: str,
        security: SecurityConfig | None,
        wait_until: Callable[[Callable[[], bool]], None],
    ) -> None:
        dial = Dialer(security=security, lane="unary")
        limits = Timeouts(join_s=_PATIENCE_S, call_s=_PATIENCE_S)
        self._mesh: Mesh = join_mesh(coordinator, name=OTHERS[0], dial=dial, timeouts=limits)
        self._pushes = 0
        self._snapshots = 0
        wait_until(self._has_servers)
        (shard,) = self._map().shards
        self.server_address: str = shard.address
        self._channel: Channel = self._mesh.connection.servers.dial(shard.address, shard.name)
        self._tables = {name: self._table(name) for name in (*KEPT, *SCRATCH)}
        for name in KEPT:
            self._tables[name].push(_IDS, np.ones((_ROWS, DIM), np.float32))
        self._witness = self._mesh.table(_WITNESS, rows=1, dim=1, optimizer=optim.SGD(lr=1.0))
        self._first = float(self._witness.lookup([0])[0, 0])

    def _table(self, name: str) -> Table:
        rows = None if name.endswith("hash") else 1000
        return self._mesh.table(name, rows=rows, dim=DIM, optimizer=optim.Adagrad(lr=0.1))

    def _has_servers(self) -> bool:
        try:
            return len(self._map().shards) == 1
        except MeshError:
            return False

    def _map(self) -> Any:
        connection = self._mesh.connection
        return connection.coordinator.get_shard_map(connection.deadline())

    @property
    def incarnation(self) -> int:
        """The incarnation of the member."""
        return self._mesh.connection.incarnation

    @property
    def epoch(self) -> int:
        """The epoch of the shard map."""
        return int(self._map().epoch)

    def differences(self, expected: dict[str, str]) -> list[str]:
        """Return how the state differs from a digest, and what does not work any more."""
        begun = time.monotonic()
        try:
            self._check_health()
            self._check_push()
            found = self.digest()
        except (MeshError, PushLost, grpc.RpcError) as error:
            waited = time.monotonic() - begun
            return [f"an ordinary call fails after {waited:.0f} s: {error!r}"]
        return [f"{part} has changed" for part in expected if found[part] != expected[part]]

    def digest(self) -> dict[str, str]:
        """Return a digest of each part of the state that is not the fuzzer's."""
        connection = self._mesh.connection
        deadline = connection.deadline()
        found = {"the shard map": _digest(self._map().SerializeToString(deterministic=True))}
        for name in KEPT:
            spec = connection.coordinator.describe_table(name, deadline)
            found[f"the specification of {name}"] = _digest(spec.SerializeToString())
            found[f"the state of {name}"] = _digest(*self._rows_of(name))
        members = connection.coordinator.get_status(deadline).members
        for held in members:
            if held.member.name in OTHERS:
                found[f"member {held.member.name}"] = _digest(held.member.SerializeToString())
        return found | {f"member {n}": found.get(f"member {n}", "missing") for n in OTHERS}

    def _rows_of(self, name: str) -> Iterator[bytes]:
        """Yield ids, rows and optimizer state of a whole table, sorted by id."""
        self._snapshots += 1
        label = f"watcher-{self._snapshots}"
        asked = pb.BeginSnapshotRequest(snapshot=label, tables=[name])
        deadline = Deadline.after(_PATIENCE_S)
        begun = self._channel.call(METHODS["BeginSnapshot"], asked, deadline)
        yield str((begun.tables[0].steps, begun.tables[0].rows)).encode()
        cursor, parts = 0, []
        while True:
            page: Frame[pb.ReadSnapshotResponse] = self._channel.call(
                METHODS["ReadSnapshot"],
                pb.ReadSnapshotRequest(snapshot=label, table=name, cursor=cursor),
                deadline,
            )
            parts.append(
                {n: a.copy() for n, a in zip(page.message.names, page.arrays, strict=True)}
            )
            cursor = page.message.next_cursor
            if not cursor:
                break
        self._channel.call(METHODS["EndSnapshot"], pb.EndSnapshotRequest(snapshot=label), deadline)
        rows = [part for part in parts if "ids" in part]
        if not rows:
            return
        order = np.argsort(np.concatenate([part["ids"] for part in rows]))
        for column in sorted(rows[0]):
            if column in ("ids", "rows") or column.startswith("state."):
                yield np.concatenate([part[column] for part in rows])[order].tobytes()

    def _check_push(self) -> None:
        """Push once, and check that the row has every push of this member."""
        self._witness.push([0], np.ones((1, 1), np.float32))
        self._pushes += 1
        held = float(self._witness.lookup([0])[0, 0])
        if abs(held - (self._first - self._pushes)) > 1e-3 * self._pushes:
            raise PushLost(f"{self._pushes} pushes moved a row by {self._first - held:g}")

    def _check_health(self) -> None:
        data = health_pb2.HealthCheckRequest().SerializeToString()
        timeout_s = _PATIENCE_S
        call = self._channel._channel.unary_unary("/grpc.health.v1.Health/Check")
        answer = health_pb2.HealthCheckResponse.FromString(call(data, timeout=timeout_s))
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise PushLost(f"the health service answers {answer.status}")

    def close(self) -> None:
        """Leave the mesh."""
        self._channel.close()
        self._mesh.close()


class PushLost(Exception):
    """An ordinary member does not get what it is entitled to."""


def _digest(*parts: bytes) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(len(part).to_bytes(8, "little") + part)
    return made.hexdigest()
