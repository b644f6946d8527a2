"""Each push once: what a server remembers of the pushes it has applied."""

import threading
from collections.abc import Callable
from typing import final

_WINDOW = 1024


@final
class Pushes:
    """The newest pushes of each worker.

    A worker numbers its pushes. Those within the window are remembered one by one; older ones
    count as applied, since a client gives up on a push long before a thousand newer ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _seen, and makes check and effect one
        self._seen: dict[str, tuple[int, int, set[int]]] = {}

    def once(self, sender: tuple[str, int, int], effect: Callable[[], object]) -> bool:
        """Run `effect` unless this push took effect before; return whether it ran.

        Args:
            sender: Worker, incarnation and the worker's number of the push.
            effect: Applies the push.
        """
        worker, incarnation, sequence = sender
        with self._lock:
            held = self._seen.get(worker)
            if held is None or held[0] < incarnation:
                held = (incarnation, 0, set())
            _, floor, seen = held
            if incarnation < held[0] or sequence <= floor or sequence in seen:
                return False
            effect()
            seen.add(sequence)
            if len(seen) > _WINDOW:
                floor = sorted(seen)[_WINDOW // 2]
                seen = {number for number in seen if number > floor}
            self._seen[worker] = (incarnation, floor, seen)
            return True
