"""Target `shm-race`: shared memory that changes while the server works with it."""

from __future__ import annotations

import random
import threading
import time
from typing import ClassVar

import numpy as np

from tests.fuzz.batch import Batch
from tests.fuzz.lane_connections import SocketLane
from tests.fuzz.lane_frames import HOT, LaneFrameMaker
from tests.fuzz.lane_target import ShmTarget
from tests.fuzz.rpc_frames import FrameMaker

_HOSTILE = (-1, 2**31, 2**40, 2**62, -(2**63))
_COUNTS = (800, 1000)
_RPCS = ("Lookup", "Push", "Backward", "Refresh")


class RacingTarget(ShmTarget):
    """Overwrites the arrays of frames that are under way, again and again."""

    name: ClassVar[str] = "shm-race"
    share: ClassVar[float] = 0.02

    def lane_maker(self, chance: random.Random, caller: str) -> LaneFrameMaker:
        """Return what draws requests with many ids, which take the server longer to read."""
        maker = FrameMaker(chance, self.words(chance, caller), counts=_COUNTS)
        return LaneFrameMaker(maker, [method for method in HOT.values() if method.name in _RPCS])

    def send(self, chance: random.Random, batch: Batch) -> None:
        """Send frames as `shm` does, beside a thread that changes them."""
        ended = threading.Event()
        seed = chance.randrange(1 << 32)
        racer = threading.Thread(target=self._race, args=(random.Random(seed), ended))
        racer.start()
        try:
            super().send(chance, batch)
        finally:
            ended.set()
            racer.join()

    def _race(self, chance: random.Random, ended: threading.Event) -> None:
        while not ended.is_set():
            for connection in list(self._open.values()):
                shared = connection.shared if isinstance(connection, SocketLane) else None
                if shared is None or shared.size < 8:
                    continue
                numbers = shared[: shared.size & -8].view(np.int64)
                some = [chance.randrange(numbers.size) for _ in range(16)]
                before = numbers[some]
                numbers[some] = chance.choice(_HOSTILE)
                # Valid again when they are checked, with some luck.
                numbers[some] = before
            time.sleep(0)
