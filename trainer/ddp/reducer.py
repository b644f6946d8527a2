"""The reducer: fills buckets as gradients become ready and averages them while backward runs.

A pass is synchronised if a gradient reaches an output of a synchronised forward, or a parameter
after one. Buckets are launched strictly in order; at the end of the pass the reducer waits for them
and writes the averages back. Sums run in rank order and are divided afterwards.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import numpy as np

from gradmesh.engine.autograd import HookHandle, Tensor, gradient_map, queue_callback
from gradmesh.engine.autograd.leaf import add_hook
from gradmesh.engine.backend import to_numpy
from gradmesh.trainer.ddp import error_report
from gradmesh.trainer.ddp.agreement import to_group_memory
from gradmesh.trainer.ddp.bucket import Bucket, DenseBucket, Launch
from gradmesh.trainer.ddp.bucket_assignment import BucketAssignment, GradientSpec, assign_buckets
from gradmesh.trainer.ddp.bucket_layout import BucketLayout, broadcast_assignments
from gradmesh.trainer.ddp.comm_hook import CommFuture, GradBucket
from gradmesh.trainer.ddp.delayed_all_reduce import DelayedAllReduce
from gradmesh.trainer.ddp.error_report import ErrorReport
from gradmesh.trainer.ddp.gradients import Gradients, copy_into
from gradmesh.trainer.ddp.options import ReducerOptions
from gradmesh.trainer.ddp.parameter_usage import ParameterUsage, StaticGraph, unused_in
from gradmesh.trainer.ddp.timeline import Timeline
from gradmesh.trainer.errors import ReductionError, UnfinishedReduction
from gradmesh.trainer.process_group import ProcessGroup

_log = logging.getLogger(__name__)


@final
class _BackwardPass:
    """Hold the state of a pass that is under way on this rank.

    Args:
        into: The map that takes its gradients; None means `.grad`.
        count: How many parameters are averaged.
    """

    __slots__ = ("errors", "gradients", "next_bucket", "order", "ready", "saved", "unused")

    def __init__(self, into: dict[Any, Any] | None, count: int) -> None:
        self.gradients = Gradients(into)
        self.ready = bytearray(count)
        self.unused: set[int] = set()
        self.order: list[int] = []
        self.next_bucket = 0
        self.errors: list[ErrorReport] = []
        # Gradients of an earlier pass that lie in a bucket, for parameters unused in this one.
        self.saved: dict[int, Any] = {}


@final
class Reducer:
    """Average the gradients of some leaves over the ranks of a group.

    Args:
        leaves: The parameters, the same on every rank in the same order.
        specs: Name, shape and dtype of each gradient.
        group: The ranks.
        options: The wrapper's options.
        timeline: Records when things happen.
        delayed: Parameters that are reduced separately, or None.
    """

    def __init__(
        self,
        leaves: Sequence[Tensor],
        specs: Sequence[GradientSpec],
        group: ProcessGroup,
        options: ReducerOptions,
        timeline: Timeline,
        delayed: DelayedAllReduce | None = None,
    ) -> None:
        self.leaves = list(leaves)
        self.specs = list(specs)
        self.group = group
        self.options = options
        self.divisor = group.size
        self.hook: Callable[[GradBucket], CommFuture] | None = None
        self.hook_name = ""
        self.after: list[Callable[[Gradients], None]] = []
        """Called with the gradients when a pass has succeeded on all ranks."""
        self.delayed = delayed
        self.usage = ParameterUsage(len(self.leaves))
        self.static = StaticGraph(len(self.leaves)) if options.static_graph else None
        self.has_rebuilt = False
        self.arrival: list[int] = []
        self.buckets_reduced = 0
        self.unused_here: list[int] = []
        self.graph_was_static = True
        self._timeline = timeline
        self._lock = threading.RLock()  # guards the state of the pass
        self._pass: _BackwardPass | None = None
        self._is_armed = False
        self._forwards = 0
        self._predicted_unused: list[int] = []
        self._prediction = ParameterUsage(len(self.leaves))
        self._recorded_order: list[int] | None = None
        self.layout = BucketLayout(self.leaves, self.specs, options.gradient_as_bucket_view)
        self.layout.build(self._initial_assignment(), group)
        self._handles: list[HookHandle] = []
        self._register_hooks()

    def _initial_assignment(self) -> list[BucketAssignment]:
        options = self.options
        limits = options.caps.initial_limits(
            static_graph=options.static_graph, find_unused=options.find_unused_parameters
        )
        # Backward reaches the parameters of the last layers first.
        return assign_buckets(self.specs, limits)[::-1]

    def _register_hooks(self) -> None:
        ref = weakref.ref(self)

        def on_gradient(index: int) -> Callable[[Tensor], None]:
            def run(_: Tensor) -> None:
                reducer = ref()
                if reducer is not None:
                    reducer._on_gradient(index)

            return run

        for index, leaf in enumerate(self.leaves):
            self._handles.append(leaf.register_post_accumulate_grad_hook(on_gradient(index)))
        if self.delayed is not None:
            self._handles += self.delayed.register_hooks(ref)
        weakref.finalize(self, _remove_hooks, self._handles, self.layout).atexit = False

    def release(self) -> None:
        """Remove the hooks from the parameters; their gradients stay as they are."""
        _remove_hooks(self._handles, self.layout)

    def check_finished(self) -> None:
        """Raise if the last backward pass has not finished.

        Raises:
            UnfinishedReduction: It ended with an error before gradients were averaged.
        """
        state = self._pass
        if state is None:
            return
        waiting = [self.specs[i].name for i, ready in enumerate(state.ready) if not ready]
        raise UnfinishedReduction(
            f"rank {self.group.rank}: the last backward pass ended with an error before its"
            f" gradients were averaged (waiting for {', '.join(waiting[:20]) or 'nothing'}); other"
            " ranks may wait for this one: give all of them a new group with"
            " update_process_group, or restart"
        )

    def rebuild(self) -> bool:
        """Assign buckets by the order of arrival, once; collective. Return whether it did."""
        if self.has_rebuilt or self._recorded_order is None:
            return False
        order, self._recorded_order = self._recorded_order, None
        made = assign_buckets(self.specs, self.options.caps.limits, order)
        self.layout.build(broadcast_assignments(made, len(self.leaves), self.group), self.group)
        self.has_rebuilt = True
        return True

    def arm(self, outputs: Iterable[Tensor]) -> None:
        """Average the gradients of passes that begin at these outputs."""
        found = list(outputs)
        self._forwards = self._forwards + 1 if self._is_armed else 1
        self._is_armed = True
        if self.options.is_dynamic:
            self._predicted_unused = unused_in(found, self.leaves)
        for node in {id(t.grad_fn): t.grad_fn for t in found if t.grad_fn is not None}.values():
            add_hook(node, "hooks", self._on_output)

    def disarm(self) -> None:
        """Treat passes that begin at parameters as local."""
        self._is_armed = False

    def _on_output(self, grad: Any) -> Any:
        with self._lock:
            if self._pass is None:
                self._begin(gradient_map())
        return grad

    def _on_gradient(self, index: int) -> None:
        with self._lock:
            self.usage.record(index)
            state = self.current()
            if state is None:
                return
            if self.static is not None:
                due = self.static.arrive(index)
                if due < 0:
                    name = self.specs[index].name
                    state.errors.append(error_report.changed([name], "got a gradient once more"))
                if due != 0:
                    return
            self._mark_ready(state, index, is_used=True)

    def current(self) -> _BackwardPass | None:
        """Return the pass under way, or begin it if the reducer is armed; None for a local pass."""
        state = self._pass
        into = gradient_map()
        if state is None:
            return self._begin(into) if self._is_armed else None
        if state.gradients.into is not into:
            raise ReductionError(
                f"rank {self.group.rank}: two backward passes run through the same module at once;"
                " finish one before the other begins"
            )
        return state

    def _begin(self, into: dict[Any, Any] | None) -> _BackwardPass:
        state = self._pass = _BackwardPass(into, len(self.leaves))
        self._timeline.mark("backward_compute_start")
        queue_callback(self._finalize)
        self.buckets_reduced = 0
        self.layout.begin_pass(has_map=into is not None)
        if self.delayed is not None:
            self.delayed.begin()
        if self.static is not None:
            self.static.begin()
            if self.static.is_known:
                self._mark_unused(state, self.static.unused())
        elif self.options.is_dynamic:
            # In a context the graph continues on other workers: what is unused is known at the end.
            is_certain = into is None and self._forwards == 1 and self._is_armed
            predicted = self._predicted_unused if is_certain else []
            if self.options.skip_all_reduce_unused_params:
                self._share_prediction(predicted)
            self._mark_unused(state, predicted)
        return state

    def _share_prediction(self, unused: Sequence[int]) -> None:
        """Exchange which parameters are unused, so that all ranks skip the same buckets."""
        self._prediction.reset()
        for index in set(range(len(self.leaves))).difference(unused):
            self._prediction.record(index)
        self._prediction.launch(self.group)

    def _mark_unused(self, state: _BackwardPass, indices: Iterable[int]) -> None:
        for index in indices:
            self._mark_ready(state, index, is_used=self.usage.is_used(index))

    def _mark_ready(self, state: _BackwardPass, index: int, is_used: bool) -> None:
        """Put a gradient into its bucket, and launch the buckets that are full."""
        if state.ready[index]:
            state.errors.append(error_report.repeated(self.specs[index].name))
            return
        state.ready[index] = 1
        state.order.append(index)
        bucket, slot = self.layout.slots[index]
        grad = state.gradients.get(self.leaves[index])
        if not is_used:
            state.unused.add(index)
            if isinstance(bucket, DenseBucket) and grad is bucket.views[slot]:
                state.saved[index] = grad.copy()
        if not self.options.batched_grad_copy:
            bucket.fill(slot, grad)
        bucket.waiting -= 1
        if bucket.waiting == 0:
            if self.options.batched_grad_copy:
                for other, leaf in enumerate(bucket.leaves):
                    bucket.fill(other, state.gradients.get(leaf))
            self._launch_full_buckets(state)

    def _launch_full_buckets(self, state: _BackwardPass) -> None:
        last = len(self.layout.buckets) - 1
        while state.next_bucket <= last:
            bucket = self.layout.buckets[state.next_bucket]
            if bucket.waiting:
                return
            if state.next_bucket == 0:
                self._timeline.mark("backward_comm_start")
            if self._can_skip(bucket):
                bucket.is_skipped = True
            else:
                self._launch(bucket, bool(state.errors))
            state.next_bucket += 1

    def _launch(self, bucket: Bucket, status: bool) -> None:
        """Start the reduction of a bucket; the last one carries the status."""
        is_last = bucket.index == len(self.layout.buckets) - 1
        bucket.launch(Launch(self.group, self.divisor, self.hook, status and is_last, is_last))
        self.buckets_reduced += 1

    def _can_skip(self, bucket: Bucket) -> bool:
        """Return whether no rank uses a bucket; the answer is the same on all ranks."""
        if not self.options.skip_all_reduce_unused_params:
            return False
        used = None if self.static is None else self.static.used_on
        if self.options.is_dynamic:
            used = self._prediction.counts()
        return used is not None and not any(used[index] for index in bucket.members)

    def _finalize(self) -> None:
        """Finish the pass: launch the remaining buckets, wait, and write the averages back."""
        state = self._pass
        assert state is not None
        self._timeline.mark("backward_compute_end")
        self._mark_missing(state)
        learning = self.static is not None and self.static.used_on is None
        if self.options.is_dynamic or learning:
            self.usage.launch(self.group)
        status = self._launch_status(bool(state.errors))
        reported = False
        for bucket in self.layout.buckets:
            if not bucket.is_skipped:
                reported |= bucket.wait()
                self._write_back(state, bucket)
        if self.delayed is not None:
            self.delayed.finish(state.gradients)
        if status is not None:
            reported |= bool(status.wait())
        self._timeline.mark("backward_comm_end")
        self._end_pass(state, learning, reported)

    def _mark_missing(self, state: _BackwardPass) -> None:
        """Mark parameters without a gradient in this pass as ready, or record an error."""
        rest = [index for index, ready in enumerate(state.ready) if not ready]
        names = [self.specs[index].name for index in rest]
        learning = self.static is not None and not self.static.is_known
        if rest and not self.options.is_dynamic and not learning:
            if self.static is not None:
                state.errors.append(error_report.changed(names, "got no gradient"))
            else:
                state.errors.append(
                    error_report.missing(names, self.options.find_unused_parameters)
                )
        if self.delayed is not None:
            state.errors += self.delayed.launch_missed(state.gradients)
        self._mark_unused(state, rest)

    def _launch_status(self, status: bool) -> CommFuture | None:
        """All-reduce the status by itself if no bucket carries it."""
        carried = self.layout.buckets and not self.layout.buckets[-1].is_skipped
        if carried and self.hook is None and self.delayed is None:
            return None
        flag = to_group_memory(self.group, np.array([status], np.int32))
        work = self.group.all_reduce(flag)
        return CommFuture.after(work, flag).then(lambda total: int(to_numpy(total)[0]))

    def _write_back(self, state: _BackwardPass, bucket: Bucket) -> None:
        for slot, index in enumerate(bucket.members):
            leaf = self.leaves[index]
            if index in state.unused and self._is_unused_everywhere(index):
                if index in state.saved:
                    copy_into(leaf.grad.data, state.saved[index])
            elif self.options.gradient_as_bucket_view:
                state.gradients.alias(leaf, bucket.result(slot))
            else:
                state.gradients.put(leaf, bucket.result(slot))

    def _is_unused_everywhere(self, index: int) -> bool:
        known = self.static is not None and self.static.used_on is not None
        counts = self.static.used_on if self.static is not None and known else self.usage.counts()
        return counts is None or not counts[index]

    def _end_pass(self, state: _BackwardPass, learning: bool, reported: bool) -> None:
        counts = self.usage.counts()
        self.layout.end_pass()
        self._pass = None
        self._is_armed = False
        self.usage.reset()
        if reported:
            error_report.raise_reports(self.group, state.errors)
        if state.errors:
            raise error_report.local_error(state.errors, self.group.rank)
        if self.static is not None:
            if learning:
                self.static.used_on = counts
            if not self.static.is_known:
                self.static.learn()
                state.order.clear()
        self._record(state)
        for callback in self.after:
            callback(state.gradients)

    def _record(self, state: _BackwardPass) -> None:
        """Record what the statistics and the rebuild need."""
        unused = sorted(state.unused)
        if self.arrival and unused != self.unused_here:
            self.graph_was_static = False
        if self.options.is_dynamic and not self.arrival and not unused:
            _log.warning(
                "find_unused_parameters found none; leave it out if that is always the case"
            )
        self.unused_here = unused
        if len(state.order) == len(self.leaves):
            self.arrival = state.order
            if self.options.is_rebuilt and not self.has_rebuilt:
                self._recorded_order = list(state.order)

    def mirror_pass(self) -> None:
        """Take part in one pass with zeros, on a rank whose inputs have ended; collective.

        Runs the same collectives in the same order as a rank with inputs.

        Raises:
            ReductionError: Another rank reports an error.
        """
        self.layout.detach_gradients()
        if self.options.is_dynamic and self.options.skip_all_reduce_unused_params:
            self._share_prediction(range(len(self.leaves)))
        for bucket in self.layout.buckets:
            bucket.reset()
            for slot in range(len(bucket.members)):
                bucket.fill(slot, None)
            if self._can_skip(bucket):
                bucket.is_skipped = True
            else:
                self._launch(bucket, False)
        learning = self.static is not None and self.static.used_on is None
        self.usage.reset()
        if self.options.is_dynamic or learning:
            self.usage.launch(self.group)
        status = self._launch_status(False)
        waited = [bucket.wait() for bucket in self.layout.buckets if not bucket.is_skipped]
        reported = any(waited) or (status is not None and bool(status.wait()))
        counts = self.usage.counts()
        if self.static is not None and learning:
            self.static.used_on = counts
        elif self.options.is_rebuilt and not self.has_rebuilt and self._recorded_order is None:
            self._recorded_order = list(range(len(self.leaves)))
        if reported:
            error_report.raise_reports(self.group, [])

    def move_to(self, group: ProcessGroup) -> None:
        """Switch to another group: discard an unfinished pass and assign buckets again."""
        self.group = group
        self.divisor = group.size
        self._pass = None
        self._is_armed = False
        self._recorded_order = None
        self.has_rebuilt = False
        self.usage = ParameterUsage(len(self.leaves))
        if self.static is not None:
            self.static = StaticGraph(len(self.leaves))
        if self.delayed is not None:
            self.delayed.move_to(group)
        self.layout.build(self._initial_assignment(), group)

    @property
    def bucket_sizes(self) -> list[int]:
        """Bytes of each bucket."""
        return [bucket.nbytes for bucket in self.layout.buckets]


def _remove_hooks(handles: list[HookHandle], layout: BucketLayout) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()
    layout.release()
