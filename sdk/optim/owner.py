"""The owner's side of a distributed optimizer, and the lead of its clients."""

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gradmesh.engine import optim
from gradmesh.engine.autograd import Tensor
from gradmesh.engine.optim.pending import PendingState, PendingStep
from gradmesh.protos import limits
from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.rpc.current import current_agent
from gradmesh.sdk.rpc.registry import REGISTRY
from gradmesh.sdk.rpc.rref.rref import RRef

CREATE = "gradmesh.optim.create"

# Step numbers that are kept, so that late and repeated requests have no effect.
_MAX_NUMBERS = 1024


class SteppingClient(Protocol):
    """One client's optimizer on this worker."""

    @property
    def shared(self) -> frozenset[Tensor]:
        """The parameters that it steps."""


@final
class StepCounts:
    """Counts the committed steps of each client.

    A client that joins later starts at the count of the slowest. A client that is gone is removed:
    its optimizer lives as long as its reference to it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _steps
        self._steps: weakref.WeakKeyDictionary[SteppingClient, int] = weakref.WeakKeyDictionary()

    def join(self, client: SteppingClient) -> None:
        """Add a client."""
        with self._lock:
            self._steps[client] = min(self._of_others(client), default=0)

    def advance(self, client: SteppingClient) -> None:
        """Count a step of a client."""
        with self._lock:
            self._steps[client] += 1

    def lead(self, client: SteppingClient) -> int:
        """Return how many steps a client is ahead of the slowest one that shares parameters."""
        with self._lock:
            own = self._steps[client]
            return max(0, own - min(self._of_others(client), default=own))

    def largest_lead(self) -> int:
        """Return the lead of the client that is furthest ahead."""
        with self._lock:
            clients = list(self._steps)
        return max((self.lead(client) for client in clients), default=0)

    def _of_others(self, client: SteppingClient) -> list[int]:
        return [
            steps
            for other, steps in list(self._steps.items())
            if other is not client and not client.shared.isdisjoint(other.shared)
        ]


STEP_COUNTS = StepCounts()
"""The step counts of this process."""


@final
class StepLeadMetrics(Collector):
    """Exports the largest lead of a client.

    Args:
        registry: Where to register.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return the metric."""
        yield GaugeMetricFamily(
            "gradmesh_optimizer_lead_steps",
            "Steps that some client of parameters here is ahead of the slowest one.",
            STEP_COUNTS.largest_lead(),
        )


# A parameter's lock is chosen by its identity; two parameters may share one.
_LOCKS = [threading.Lock() for _ in range(256)]


class PreparedChange(Protocol):
    """A change that was prepared."""

    @property
    def params(self) -> list[Tensor]:
        """The parameters that it changes."""

    def publish(self) -> None:
        """Apply the change."""


@final
class OwnerOptimizer:
    """Steps the parameters of this process for one distributed optimizer.

    Optimizers of several clients may share parameters: a lock for each parameter makes every step
    atomic.

    Args:
        optimizer: The optimizer of this process's parameters.
    """

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._lock = threading.Lock()  # guards the optimizer's state and all below
        self._pending: dict[int, PreparedChange] = {}
        self._abandoned: dict[int, None] = {}
        self._committed: dict[int, None] = {}
        self.shared = frozenset(self._params())
        STEP_COUNTS.join(self)

    def prepare(
        self,
        number: int,
        grads: Mapping[Any, Any],
        options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Compute a step without applying it; `commit` applies it. Idempotent.

        Args:
            number: Number of the step, chosen by the client.
            grads: Gradients by parameter; those of other parameters are ignored.
            options: For each group, the options that differ from the optimizer's own.

        Raises:
            Exception: What the optimizer raised; nothing is changed.
        """
        with self._lock:
            if number not in self._pending and number not in self._committed:
                self._keep(number, PendingStep(self._optimizer, grads, options))

    def commit(self, number: int) -> None:
        """Apply the step that was prepared under a number; idempotent.

        Raises:
            InvalidRequest: There is none.
        """
        with self._lock:
            if number in self._committed:
                return
            pending = self._pending.pop(number, None)
            if pending is None:
                raise InvalidRequest(f"nothing was prepared under the number {number}")
            with _held(pending.params):
                pending.publish()
            _note(self._committed, number)
        if isinstance(pending, PendingStep):
            STEP_COUNTS.advance(self)

    def abandon(self, number: int) -> None:
        """Drop the step that was prepared under a number, if there is one."""
        with self._lock:
            if self._pending.pop(number, None) is None:
                _note(self._abandoned, number)

    @property
    def lead(self) -> int:
        """How many steps this client is ahead of the slowest one that shares parameters with it."""
        return STEP_COUNTS.lead(self)

    def options(self) -> list[dict[str, Any]]:
        """Return the options of each group."""
        groups = self._optimizer.param_groups
        return [{k: v for k, v in group.items() if k != "params"} for group in groups]

    def state(self) -> list[dict[str, Any] | None]:
        """Return the state of each parameter, in the order of the groups; None before a step."""
        with self._lock:
            kept = [self._optimizer.state.get(param) for param in self._params()]
            return [None if one is None else dict(one) for one in kept]

    def prepare_state(self, number: int, state: Sequence[Mapping[str, Any] | None]) -> None:
        """Check a state that `state` returned, for `commit` to load.

        Raises:
            ValueError: It does not fit the parameters.
        """
        with self._lock:
            self._keep(number, PendingState(self._optimizer, self._params(), state))

    def _keep(self, number: int, pending: PreparedChange) -> None:
        if number in self._abandoned:
            del self._abandoned[number]
        else:
            self._pending[number] = pending
            if len(self._pending) > limits.MAX_PREPARED_STEPS:
                # Neither committed nor abandoned: its client failed meanwhile.
                oldest = next(iter(self._pending))
                del self._pending[oldest]
                _note(self._abandoned, oldest)

    def _params(self) -> list[Tensor]:
        return [param for group in self._optimizer.param_groups for param in group["params"]]


def _create(
    name: str, groups: list[dict[str, Any]], args: list[Any], kwargs: dict[str, Any]
) -> tuple[RRef[OwnerOptimizer], list[dict[str, Any]]]:
    """Create an optimizer of parameters of this process; return a reference and its options."""
    worker = current_agent().info.name
    made = REGISTRY.find(name, worker)
    if not isinstance(made, type) or not issubclass(made, optim.Optimizer):
        raise InvalidRequest(
            f"{name!r} on {worker} is not an optimizer", function=name, worker=worker
        )
    local = [
        {**group, "params": [rref.local_value() for rref in group["params"]]} for group in groups
    ]
    owner = OwnerOptimizer(made(local, *args, **kwargs))
    return RRef(owner), owner.options()


def _note(numbers: dict[int, None], number: int) -> None:
    numbers[number] = None
    if len(numbers) > _MAX_NUMBERS:
        del numbers[next(iter(numbers))]


@contextmanager
def _held(params: Sequence[Tensor]) -> Iterator[None]:
    """Acquire the locks of parameters, always in the same order."""
    with ExitStack() as stack:
        for place in sorted({hash(param) % len(_LOCKS) for param in params}):
            stack.enter_context(_LOCKS[place])
        yield


def register() -> None:
    """Register the functions with which peers create and step optimizers; idempotent."""
    REGISTRY.register(CREATE, _create)
    REGISTRY.register("gradmesh.optim.OwnerOptimizer", OwnerOptimizer)
    for name in optim.__all__:
        cls = getattr(optim, name)
        if isinstance(cls, type) and issubclass(cls, optim.Optimizer):
            REGISTRY.register(f"gradmesh.optim.{name}", cls)


register()
