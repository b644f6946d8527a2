"""What a process does in the mesh, in words and on the wire."""

from typing import Literal, TypeAlias

from gradmesh.protos.coordinator.v1 import membership_pb2

Role: TypeAlias = Literal["client", "trainer", "parameter-server", "worker"]

ROLES: dict[Role, membership_pb2.Role] = {
    "client": membership_pb2.ROLE_CLIENT,
    "trainer": membership_pb2.ROLE_TRAINER,
    "parameter-server": membership_pb2.ROLE_PARAMETER_SERVER,
    "worker": membership_pb2.ROLE_WORKER,
}
"""The wire's number of each."""

_NAMES = {number: name for name, number in ROLES.items()}


def role_name(role: membership_pb2.Role) -> str:
    """Return a role in words; empty for one that nobody has."""
    return _NAMES.get(role, "")
