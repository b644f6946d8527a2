"""Calls that the SDK never makes, to test the responses of the servers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradmesh.protos.coordinator.v1 import coordinator_pb2
from gradmesh.protos.method import methods_of
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.policy import RetryPolicy

_ALL = METHODS | methods_of(coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"])


@pytest.fixture
def raw() -> Iterator[Callable[..., Any]]:
    """Call an rpc by name at an address, without retries or routing."""
    channels: dict[str, Channel] = {}

    def call(address: str, rpc: str, request: Any, timeout_s: float = 20.0) -> Any:
        if address not in channels:
            channels[address] = Channel(address, "raw", retry=RetryPolicy(first_s=60))
        return channels[address].call(_ALL[rpc], request, Deadline.after(timeout_s))

    yield call
    for channel in channels.values():
        channel.close()
