"""What a handler may know about the call it serves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gradmesh.protos.frame import Array
from gradmesh.protos.method import Method
from gradmesh.sdk.transport.caller import ANYBODY, Caller
from gradmesh.sdk.transport.deadline import Deadline

MAX_CALL_S = 600.0
"""Deadline of a call whose caller set none: nothing waits for ever."""

Empty: TypeAlias = Callable[[tuple[int, ...], Any], Array]
"""Returns memory for an array, given its shape and type."""


@dataclass(slots=True, eq=False)
class Call:
    """What a handler may know about the call it serves.

    Args:
        deadline: When the caller stops waiting.
        peer: Where the call comes from.
        empty: Returns memory for an array of the response; on a lane, memory that is sent as it is.
        borrowed: Whether the request's arrays are gone when the handler returns; a handler that
            keeps one must copy it then.
        caller: Who calls.
    """

    deadline: Deadline
    peer: str
    empty: Empty = np.empty
    borrowed: bool = False
    caller: Caller = ANYBODY


class Endpoint(NamedTuple):
    """An rpc and the function that serves it."""

    method: Method
    serve: Callable[[Any, Call], Any]
