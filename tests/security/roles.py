"""Tokens of all roles, and raw calls to any process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradmesh.protos.autograd.v1 import autograd_pb2
from gradmesh.protos.coordinator.v1 import coordinator_pb2
from gradmesh.protos.method import Method, methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.protos.rpcs import ROLES
from gradmesh.sdk.process.network import LaneChoice, SecurityConfig
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.policy import RetryPolicy
from gradmesh.sdk.transport.tickets import FixedCredentials, Metadata

METHODS: dict[str, Method] = {
    name: method
    for module in (autograd_pb2, coordinator_pb2, owner_pb2, parameter_server_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for name, method in methods_of(service).items()
}
# One attempt: a pause longer than any deadline here.
_ONCE = RetryPolicy(first_s=60, max_s=60)


def token_of(role: str) -> str:
    """Return the token of a role."""
    return f"secret-token-of-the-{role}"


def role_files(folder: Path) -> dict[str, SecurityConfig]:
    """Return for each role the settings of a process that shows its token and accepts all."""
    (folder / "tokens").write_text("".join(f"{role}:{token_of(role)}\n" for role in ROLES))
    found = {}
    for role in ROLES:
        (folder / role).write_text(token_of(role))
        found[role] = SecurityConfig(token_file=folder / role, tokens_file=folder / "tokens")
    return found


@contextmanager
def showing(
    address: str, metadata: Metadata = (), *, lane: LaneChoice = "unary"
) -> Iterator[Channel]:
    """Yield a channel whose calls show certain metadata and are sent once."""
    credentials = FixedCredentials(metadata)
    with Channel(address, "x", credentials=credentials, retry=_ONCE, lane=lane) as channel:
        yield channel


def call_raw(address: str, rpc: str, request: Any, metadata: Metadata = ()) -> Any:
    """Make one call with certain metadata."""
    with showing(address, metadata) as channel:
        return channel.call(METHODS[rpc], request, Deadline.after(10))


def bearer(role: str) -> Metadata:
    """Return the metadata with the token of a role."""
    return (("authorization", f"Bearer {token_of(role)}"),)
