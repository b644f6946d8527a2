"""How far the clients that step the same parameters of this worker are, compared to each other."""

import threading
import weakref
from collections.abc import Iterable
from typing import Protocol, final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gradmesh.engine.autograd import Tensor


class Stepping(Protocol):
    """One client's optimizer on this worker."""

    @property
    def shared(self) -> frozenset[Tensor]:
        """The parameters that it steps."""


@final
class Pace:
    """Counts the steps that took effect, client by client.

    A client that begins later counts from where the slowest of the others is. One that is gone no
    longer counts: its optimizer lives as long as its reference to it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _steps
        self._steps: weakref.WeakKeyDictionary[Stepping, int] = weakref.WeakKeyDictionary()

    def join(self, client: Stepping) -> None:
        """Begin to count for a client."""
        with self._lock:
            self._steps[client] = min(self._of_others(client), default=0)

    def advance(self, client: Stepping) -> None:
        """Count a step of a client."""
        with self._lock:
            self._steps[client] += 1

    def lead(self, client: Stepping) -> int:
        """Return how many steps a client is ahead of the slowest that shares parameters."""
        with self._lock:
            own = self._steps[client]
            return max(0, own - min(self._of_others(client), default=own))

    def largest_lead(self) -> int:
        """Return how far the client is that is farthest ahead."""
        with self._lock:
            clients = list(self._steps)
        return max((self.lead(client) for client in clients), default=0)

    def _of_others(self, client: Stepping) -> list[int]:
        return [
            steps
            for other, steps in list(self._steps.items())
            if other is not client and not client.shared.isdisjoint(other.shared)
        ]


PACE = Pace()
"""That of this process."""


@final
class PaceMetrics(Collector):
    """Shows how far clients are ahead of each other.

    Args:
        registry: Where.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return the figure."""
        yield GaugeMetricFamily(
            "gradmesh_optimizer_lead_steps",
            "Steps that some client of parameters here is ahead of the slowest one.",
            PACE.largest_lead(),
        )
