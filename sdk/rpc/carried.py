"""Remote modules on their way: a higher layer owns their class, calls carry them."""

from collections.abc import Callable
from typing import Any, NamedTuple, final

from gradmesh.protos.common.v1 import value_pb2 as pb


@final
class Carrier(NamedTuple):
    """How a class travels as a reference and a few words.

    Args:
        cls: The class.
        write: Returns the reference of an object, and the message without it.
        read: Makes an object of a reference that arrived, and the message.
    """

    cls: type
    write: Callable[[Any], tuple[Any, pb.ModuleValue]]
    read: Callable[[Any, pb.ModuleValue], Any]


_carrier: Carrier | None = None


def install(carrier: Carrier) -> None:
    """Say how remote modules travel."""
    global _carrier
    _carrier = carrier


def carrier() -> Carrier | None:
    """Return how remote modules travel, in a process that has them: any that takes part in rpc."""
    return _carrier
