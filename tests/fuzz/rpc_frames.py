"""Requests of every rpc: valid ones with arrays that fit, and their mutations as bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradmesh.protos.autograd.v1 import autograd_pb2
from gradmesh.protos.coordinator.v1 import coordinator_pb2
from gradmesh.protos.dtype import WIRE_TO_NUMPY
from gradmesh.protos.frame import Frame, encode
from gradmesh.protos.method import Method, methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from tests.fuzz.messages import MessageMaker
from tests.fuzz.mutation import mutate
from tests.fuzz.words import Words

DIM = 4
"""Elements of a row of every table of the fuzzer."""

_SERVER_SERVICES = (
    parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"],
    owner_pb2.DESCRIPTOR.services_by_name["OwnerService"],
    autograd_pb2.DESCRIPTOR.services_by_name["AutogradService"],
)
COORDINATOR = "coordinator"
SERVER = "parameter-server"

RPCS: dict[str, tuple[Method, ...]] = {
    COORDINATOR: tuple(
        methods_of(coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]).values()
    ),
    SERVER: tuple(
        method
        for service in _SERVER_SERVICES
        for method in methods_of(service).values()
        if method.name != "Exchange"
    ),
}
"""The unary rpcs of each process."""

_DTYPES = [dtype for number, dtype in WIRE_TO_NUMPY.items() if number]
_ROW_NAMES = ("ids", "rows", "marks", "alive", "alive_marks", "buckets", "clocks", "state.momentum")


@dataclass(frozen=True)
class RpcFrame:
    """A request before it is encoded.

    Attributes:
        method: The rpc.
        message: Without its arrays.
        arrays: The arrays.
    """

    method: Method
    message: Any
    arrays: Sequence[Any]

    def encoded(self) -> bytes:
        """Return the bytes of a gRPC request."""
        if self.method.bulk[0]:
            return encode(Frame(self.message, list(self.arrays)))
        data: bytes = self.message.SerializeToString()
        return data


_MEMBERSHIP = ("Register", "Leave")
# Fields that most callers leave out, and that the server refuses in most combinations.
_RARE = (
    "mark",
    "autograd",
    "wire_rows",
    "wire_grads",
    "failed_passes",
    "returned",
    "ahead",
    "peek",
)


def _simplify(message: Any) -> None:
    """Clear the rare fields of a request, so that it reaches the work behind the checks."""
    for name in _RARE:
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    if "depth" in message.DESCRIPTOR.fields_by_name:
        message.depth %= 4
    if "args" in message.DESCRIPTOR.fields_by_name:
        # A function of the registry, not a method of a reference.
        message.ClearField("target")
        del message.args[2:]


class FrameMaker:
    """Draws requests.

    Args:
        chance: The source of all decisions.
        words: The vocabulary.
        joining: The vocabulary of requests that begin or end a membership.
        counts: How many ids a request has.
    """

    def __init__(
        self,
        chance: random.Random,
        words: Words,
        joining: Words | None = None,
        counts: Sequence[int] = (0, 1, 2, 3, 17),
    ) -> None:
        self.chance = chance
        self._counts = counts
        self._maker = MessageMaker(chance, words)
        self._joining = MessageMaker(chance, joining or words)
        self._last = b""

    def make(self, method: Method) -> RpcFrame:
        """Return a valid request, often one that the server accepts."""
        maker = self._joining if method.name in _MEMBERSHIP else self._maker
        message = maker.make(method.request_type)
        if self.chance.random() < 0.6:
            _simplify(message)
        return RpcFrame(method, message, self._arrays(method, message) if method.bulk[0] else ())

    def bytes_of(self, method: Method) -> bytes:
        """Return the bytes of a request: valid, changed in one field, or mutated."""
        frame = self.make(method)
        how = self.chance.random()
        if how < 0.4:
            self._maker.change(frame.message)
        data = frame.encoded()
        if how > 0.7:
            data, self._last = mutate(self.chance, data, self._last), data
        return data

    def head(self, frame: RpcFrame) -> bytes:
        """Return the message of a lane frame: valid, changed in one field, or mutated."""
        how = self.chance.random()
        if how < 0.3:
            self._maker.change(frame.message)
        data: bytes = frame.message.SerializeToString()
        if how > 0.85:
            data, self._last = mutate(self.chance, data, self._last), data
        return data

    def _arrays(self, method: Method, message: Any) -> list[Any]:
        if self.chance.random() < 0.15:
            return [self._any_array() for _ in range(self.chance.randint(0, 4))]
        count = self.chance.choice(self._counts)
        ids, rows = self._ids(count), self._rows(count)
        match method.name:
            case "Lookup":
                message.ClearField("wire_rows")
                return [self._ids(count) for _ in message.tables]
            case "Push":
                message.ClearField("wire_grads")
                return [array for _ in message.tables for array in (ids, rows)]
            case "Backward":
                message.ClearField("wire_grads")
                return [self._rows(count) for _ in range(self.chance.randint(1, 2))]
            case "LoadRows" | "StageRows":
                names = ["ids", "rows"]
                if self.chance.random() < 0.3:
                    names = self.chance.sample(_ROW_NAMES, self.chance.randint(1, 4))
                message.names[:] = names
                made = {"ids": ids, "rows": rows}
                return [made[n] if n in made else self._any_array() for n in names]
        return [self._any_array() for _ in range(self.chance.randint(0, 3))]

    def _ids(self, count: int) -> Any:
        ids = np.array(self.chance.sample(range(1000), count), np.int64)
        if count and self.chance.random() < 0.15:
            ids[self.chance.randrange(count)] = self.chance.choice((-1, 2**62, -(2**63), 10**6))
        return ids

    def _rows(self, count: int) -> Any:
        rows = np.full((count, DIM), 0.5, np.float32)
        if count and self.chance.random() < 0.15:
            rows[0, 0] = self.chance.choice((np.nan, np.inf, 3e38))
        return rows

    def _any_array(self) -> Any:
        shape = [self.chance.choice((0, 1, 2, 3, 5)) for _ in range(self.chance.randint(0, 4))]
        return np.zeros(shape, self.chance.choice(_DTYPES))
