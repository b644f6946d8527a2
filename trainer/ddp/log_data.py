"""Statistics of a wrapper: its construction and its last sampled iteration."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, final

from gradmesh.engine.nn import Module
from gradmesh.trainer.ddp.options import ReducerOptions
from gradmesh.trainer.ddp.reducer import Reducer
from gradmesh.trainer.ddp.timeline import Timeline

_log = logging.getLogger(__name__)
# Numbers of samples after which the statistics are logged.
_LOGGED_SAMPLES = frozenset({10, 20, 50, 100, 500, 800, 1000})


@final
class LogData:
    """Collect the statistics; docs/ddp.md describes each.

    Args:
        module: The wrapped module.
        reducer: Its reducer.
        timeline: Timestamps of the sampled iterations.
    """

    def __init__(self, module: Module, reducer: Reducer, timeline: Timeline) -> None:
        self._reducer = reducer
        self._timeline = timeline
        self._samples = 0
        options: ReducerOptions = reducer.options
        specs = reducer.specs
        self._data: dict[str, Any] = {
            "module_name": type(module).__name__,
            "world_size": reducer.group.size,
            "rank": reducer.group.rank,
            "iteration": 0,
            "num_parameter_tensors": len(specs),
            "total_parameter_size_bytes": sum(spec.nbytes for spec in specs),
            "dtypes": ", ".join(dict.fromkeys(str(spec.dtype) for spec in specs)),
            "bucket_sizes": _joined(reducer.bucket_sizes),
            "bucket_cap_bytes": options.caps.cap_bytes,
            "find_unused_parameters": int(options.find_unused_parameters),
            "gradient_as_bucket_view": int(options.gradient_as_bucket_view),
            "static_graph": int(options.static_graph),
            "backend_name": reducer.group.backend,
            "has_rebuilt_buckets": 0,
            "join_uneven_inputs": 0,
            "comm_hook": "",
            "has_error": 0,
            "error": "",
        }

    def set(self, **values: Any) -> None:
        """Set statistics by name."""
        self._data.update(values)

    def set_error(self, error: BaseException) -> None:
        """Record that the wrapper failed."""
        self._data.update(has_error=1, error=str(error))

    def sample(self, iteration: int) -> None:
        """Copy the statistics of the timeline, if the iteration was sampled to its end."""
        statistics = self._timeline.add()
        if not statistics:
            return
        reducer = self._reducer
        self._data.update(
            iteration=iteration,
            unused_parameter_size=sum(reducer.specs[i].nbytes for i in reducer.unused_here),
            prev_iteration_grad_ready_order_indices=_joined(reducer.arrival),
            **statistics,
        )
        self._samples += 1
        if self._samples in _LOGGED_SAMPLES:
            _log.info("data parallel", extra=self.snapshot())

    def snapshot(self) -> dict[str, Any]:
        """Return all statistics as a new dict of strings and ints."""
        reducer = self._reducer
        found = {
            **self._data,
            "comm_hook": reducer.hook_name,
            "num_buckets_reduced": reducer.buckets_reduced,
            "has_rebuilt_buckets": int(reducer.has_rebuilt),
            "can_set_static_graph": int(
                reducer.options.is_dynamic and bool(reducer.arrival) and reducer.graph_was_static
            ),
        }
        if reducer.has_rebuilt:
            found["rebuilt_bucket_sizes"] = _joined(reducer.bucket_sizes)
            found["rebuilt_per_bucket_param_indices"] = ", ".join(
                " ".join(map(str, bucket.indices)) for bucket in reducer.layout.assignments
            )
        return found


def _joined(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
