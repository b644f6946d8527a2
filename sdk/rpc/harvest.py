"""Room on the lanes for many calls at once.

A lane has few connections, each of which carries one call, and calls that find none free take the
slow way. When all are taken, answers that are there, though nobody has asked for them yet, are
taken off; for short functions it is even quicker to wait a moment for one.
"""

import select
import socket
import weakref
from collections import defaultdict
from typing import Any, final

from gradmesh.sdk.rpc.rpc_call import RpcCall

# As many as a channel has connections.
_CONNECTIONS = 8
_MOMENT_S = 0.0005
# After a moment in vain so many calls go without one: their functions take longer.
_MOST_SKIPPED = 64


@final
class Harvest:
    """The calls of one worker that occupy connections of lanes, by who is asked.

    Used by many threads without a lock: at worst an answer is taken off a little later.
    """

    def __init__(self) -> None:
        # Weak, for what a call brought is not ours to keep.
        self._calls: dict[str, list[weakref.ref[RpcCall[Any]]]] = defaultdict(list)
        self._skip: dict[str, int] = defaultdict(int)
        self._penalty: dict[str, int] = defaultdict(lambda: 1)

    def sown(self, call: RpcCall[Any]) -> None:
        """Note a call that was sent."""
        if call.doorbell is not None:
            self._calls[call.worker].append(weakref.ref(call))

    def make_room(self, worker: str) -> None:
        """Take answers off, if all connections to a worker seem to be taken."""
        calls = self._calls.get(worker)
        if calls is None or len(calls) < _CONNECTIONS:
            return
        bells: dict[socket.socket, RpcCall[Any]] = {
            bell: call
            for known in calls
            if (call := known()) is not None and (bell := call.doorbell) is not None
        }
        if len(bells) >= _CONNECTIONS:
            for bell in self._ringing(worker, list(bells)):
                bells.pop(bell).take()
        self._calls[worker] = [weakref.ref(call) for call in bells.values()]

    def _ringing(self, worker: str, bells: list[socket.socket]) -> list[socket.socket]:
        """Return the connections with an answer; waits a moment where that is worth it."""
        patient = self._skip[worker] == 0
        try:
            ringing = select.select(bells, (), (), _MOMENT_S if patient else 0)[0]
        except (OSError, ValueError):  # one was closed meanwhile
            return []
        if ringing:
            self._penalty[worker] = 1
        elif patient:
            self._skip[worker] = self._penalty[worker]
            self._penalty[worker] = min(2 * self._penalty[worker], _MOST_SKIPPED)
        else:
            self._skip[worker] -= 1
        return ringing
