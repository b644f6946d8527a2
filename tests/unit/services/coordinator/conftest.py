"""Builders of messages to the coordinator."""

from collections.abc import Callable

import pytest

from gradmesh.protos.coordinator.v1 import membership_pb2, rendezvous_pb2, table_pb2
from gradmesh.protos.version import PROTOCOL

_ROLES = {
    "ps": membership_pb2.ROLE_PARAMETER_SERVER,
    "trainer": membership_pb2.ROLE_TRAINER,
    "client": membership_pb2.ROLE_CLIENT,
}


class Say:
    """Messages to the coordinator."""

    @staticmethod
    def member(name: str, incarnation: int = 1, address: str = "h:1") -> membership_pb2.Member:
        role = _ROLES[name.split("-")[0]]
        return membership_pb2.Member(name=name, role=role, address=address, incarnation=incarnation)

    @staticmethod
    def register(
        name: str, incarnation: int = 1, replace: bool = False, address: str = "h:1"
    ) -> membership_pb2.RegisterRequest:
        return membership_pb2.RegisterRequest(
            member=Say.member(name, incarnation, address), protocol=PROTOCOL, replace=replace
        )

    @staticmethod
    def join(name: str, incarnation: int = 1, after: int = 0) -> rendezvous_pb2.JoinRoundRequest:
        return rendezvous_pb2.JoinRoundRequest(
            name=name, incarnation=incarnation, after_generation=after
        )

    @staticmethod
    def put(generation: int, key: str, value: bytes) -> rendezvous_pb2.PutKeyRequest:
        return rendezvous_pb2.PutKeyRequest(generation=generation, key=key, value=value)

    @staticmethod
    def table(name: str = "user", rows: int = 10, dim: int = 4) -> table_pb2.TableSpec:
        return table_pb2.TableSpec(
            name=name,
            rows=rows,
            dim=dim,
            dtype="ELEMENT_TYPE_FLOAT32",
            initializer=table_pb2.Recipe(name="constant", settings={"value": 0.0}),
            optimizer=table_pb2.Recipe(name="sgd", settings={"lr": 0.1}),
        )


@pytest.fixture
def say() -> type[Say]:
    return Say


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Callable[[], float]:
    return Clock()
