"""Roles of members, a trainer's rank in its generation, and the values that its ranks publish."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.coordinator.v1 import membership_pb2
from gradmesh.sdk.cluster.coordinator import Coordinator
from gradmesh.sdk.transport.deadline import Deadline

Role: TypeAlias = Literal["client", "trainer", "parameter-server", "worker"]

ROLES: dict[Role, membership_pb2.Role] = {
    "client": membership_pb2.ROLE_CLIENT,
    "trainer": membership_pb2.ROLE_TRAINER,
    "parameter-server": membership_pb2.ROLE_PARAMETER_SERVER,
    "worker": membership_pb2.ROLE_WORKER,
}
"""The number of each role in the contract."""

_NAMES = {number: name for name, number in ROLES.items()}


def role_name(role: membership_pb2.Role) -> str:
    """Return the name of a role; empty for an unknown one."""
    return _NAMES.get(role, "")


@dataclass(frozen=True, slots=True)
class Membership:
    """A trainer's rank in a generation.

    Args:
        generation: Number of the set of trainers; a new one forms whenever a trainer joins or
            leaves.
        rank: From 0.
        world_size: Number of trainers in it.
    """

    generation: int
    rank: int
    world_size: int

    def mark(self, step: int) -> context_pb2.StepMark:
        """Return the StepMark of this trainer's share of a step."""
        return context_pb2.StepMark(generation=self.generation, step=step, rank=self.rank)


@final
class KeyStore:
    """Values that the trainers of one generation publish to each other, kept by the coordinator.

    Args:
        coordinator: The coordinator.
        generation: The generation.
        timeout_s: Deadline of publishing a value.
    """

    def __init__(self, coordinator: Coordinator, generation: int, timeout_s: float = 30.0) -> None:
        self._coordinator = coordinator
        self._generation = generation
        self._timeout_s = timeout_s

    def set(self, key: str, value: bytes) -> None:
        """Publish a value."""
        self._coordinator.put_key(self._generation, key, value, Deadline.after(self._timeout_s))

    def get(self, key: str, timeout_s: float) -> bytes:
        """Wait for a value."""
        return self._coordinator.get_key(self._generation, key, Deadline.after(timeout_s))
