"""Calls of a client that follows no rules, and limits that are reached quickly."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import coordinator_pb2
from gradmesh.protos.errors import LimitExceeded
from gradmesh.protos.method import methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline

METHODS = {
    name: method
    for file in (coordinator_pb2, owner_pb2, parameter_server_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for name, method in methods_of(service).items()
}
Ask = Callable[[str, Any], Any]


@pytest.fixture
def ask() -> Iterator[Callable[[str], Ask]]:
    """Connect a plain client to an address; it calls rpcs by name."""
    with ExitStack() as stack:

        def connect(address: str) -> Ask:
            channel = stack.enter_context(Channel(address, "target", lane="unary"))
            return lambda name, request: channel.call(METHODS[name], request, Deadline.after(20))

        yield connect


def lowered(
    monkeypatch: pytest.MonkeyPatch, name: str, total: int, per_caller: int | None = None
) -> None:
    bound = getattr(limits, name)
    most = min(bound.per_caller, total) if per_caller is None else per_caller
    monkeypatch.setattr(limits, name, bound._replace(total=total, per_caller=most))


def refused(call: Callable[[int], object], most: int) -> int:
    """Repeat a call until it is refused; return how often it was not."""
    for number in range(most):
        try:
            call(number)
        except LimitExceeded:
            return number
    raise AssertionError(f"not refused {most} times")
