"""Any request to a real coordinator and parameter server gets a typed answer."""

import random
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from gradmesh.engine import optim
from gradmesh.protos.coordinator.v1 import coordinator_pb2
from gradmesh.protos.dtype import WIRE_TO_NUMPY, wire_dtype
from gradmesh.protos.errors import InternalError
from gradmesh.protos.method import Method, methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.sdk.mesh.connect import connect
from gradmesh.sdk.transport.boundary import from_call
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline

SERVICES = [
    coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"],
    parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"],
    owner_pb2.DESCRIPTOR.services_by_name["OwnerService"],
]
# A restore closes its tables until it ends; every admitted client may begin one.
METHODS = [
    method
    for service in SERVICES
    for method in methods_of(service).values()
    if method.name != "BeginRestore"
]

NAMES = ["ps-0", "hostile", "double", "sgd", "uniform", "gradmesh.v1"]
TEXTS = ["", *["users"] * 6, *NAMES, "é", "a b", "k"]
NUMBERS = [0, *[1] * 8, 2, 3, 7, 4096, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1]
REALS = [0.0, 0.5, -1.0, float("nan"), float("inf"), 1e308]


class Hostile:
    """Makes well-formed messages with random content."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def message(self, message_type: type[Message], depth: int = 0) -> Message:
        message = message_type()
        for field in message.DESCRIPTOR.fields:
            if self._random.random() < 0.8 and depth < 6:
                self._fill(message, field, depth)
        return message

    def _fill(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        place = getattr(message, field.name)
        if field.name == "arrays":
            for _ in range(self._random.randrange(4)):
                self._array(place.add())
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(self._random.randrange(3)):
                self._entry(place, field.message_type.fields_by_name["value"], depth)
        elif field.is_repeated:
            for _ in range(self._random.randrange(4)):
                if field.message_type is not None:
                    place.add().CopyFrom(
                        self.message(field.message_type._concrete_class, depth + 1)
                    )
                else:
                    place.append(self._scalar(field))
        elif field.message_type is not None:
            place.CopyFrom(self.message(field.message_type._concrete_class, depth + 1))
        else:
            setattr(message, field.name, self._scalar(field))

    def _entry(self, place: Any, value: FieldDescriptor, depth: int) -> None:
        key = self._random.choice([*TEXTS, "lr", "low", "high"])
        if value.message_type is None:
            place[key] = self._scalar(value)
        else:
            place[key].CopyFrom(self.message(value.message_type._concrete_class, depth + 1))

    def _scalar(self, field: FieldDescriptor) -> Any:
        if field.enum_type is not None:
            return self._random.choice([*field.enum_type.values_by_number, 99])
        kinds = {
            FieldDescriptor.CPPTYPE_STRING: TEXTS,
            FieldDescriptor.CPPTYPE_DOUBLE: REALS,
            FieldDescriptor.CPPTYPE_BOOL: [False, True],
            FieldDescriptor.CPPTYPE_UINT32: [n for n in NUMBERS if n < 2**32],
            FieldDescriptor.CPPTYPE_UINT64: NUMBERS,
            FieldDescriptor.CPPTYPE_INT64: [n for n in NUMBERS if n < 2**63],
        }
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._random.randbytes(self._random.randrange(9))
        return self._random.choice(kinds[field.cpp_type])

    def _array(self, place: Any) -> None:
        dtype = self._random.choice([np.dtype("i8"), np.dtype("f4"), *WIRE_TO_NUMPY.values()])
        shape = [
            self._random.choice([0, 1, 2, 4]) for _ in range(self._random.choice([0, 1, 2, 3]))
        ]
        array = np.array(self._random.choice([0, 1, 3, 200, -1]) % 256).astype(dtype)
        place.dtype = wire_dtype(dtype)
        place.shape.extend(shape)
        place.data = np.full(shape, array, dtype).tobytes()


@pytest.fixture
def channels(mesh: tuple[str, str]) -> Iterator[dict[str, Channel]]:
    """Channels by service, to a mesh that has a table."""
    with connect(mesh[0], name="user") as user:
        user.table("users", rows=100, dim=4, optimizer=optim.SGD(lr=0.5))
    with Channel(mesh[0], "coordinator") as coordinator, Channel(mesh[1], "ps-0") as server:
        names = [service.full_name for service in SERVICES]
        yield dict(zip(names, [coordinator, server, server], strict=True))


def send(channel: Channel, method: Method, data: bytes) -> None:
    """Send bytes; fail on an unforeseen error only."""
    try:
        channel.attempt(method, data, 0.25).result()
    except grpc.RpcError as failure:
        error = from_call(failure, method.name)
        assert not isinstance(error, InternalError), f"{method.name}: {error}"


@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_a_client_sends_is_unforeseen(
    channels: dict[str, Channel], caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    chance, hostile = random.Random(seed), Hostile(seed)

    for _ in range(500):
        method = chance.choice(METHODS)
        data = hostile.message(method.request_type).SerializeToString()
        cut = chance.randrange(len(data) + 1) if chance.random() < 0.3 else len(data)
        send(channels[method.service], method, data[:cut])

    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []
    inspect = next(method for method in METHODS if method.name == "InspectTable")
    request = parameter_server_pb2.InspectTableRequest(table="users")
    inspected = channels[inspect.service].call(inspect, request, Deadline.after(10))
    assert inspected.rows == 100
