"""The reducer: fills buckets as gradients arrive and averages them while backward goes on.

A pass is synchronised when a gradient reaches an output of a synchronised forward, or a parameter
after one. Buckets are launched strictly in order; at the end of the pass they are waited for and
written back. Sums run in rank order and are divided afterwards.
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
from gradmesh.trainer.ddp import fault
from gradmesh.trainer.ddp.backward_pass import BackwardPass
from gradmesh.trainer.ddp.bucket import Bucket, DenseBucket, Launch
from gradmesh.trainer.ddp.buckets import Assignment, GradientSpec, assign
from gradmesh.trainer.ddp.delayed import Delayed
from gradmesh.trainer.ddp.exchange import on_group
from gradmesh.trainer.ddp.future import Future
from gradmesh.trainer.ddp.grad_bucket import GradBucket
from gradmesh.trainer.ddp.gradients import Gradients, copy_into
from gradmesh.trainer.ddp.layout import Layout, agree
from gradmesh.trainer.ddp.options import ReducerOptions
from gradmesh.trainer.ddp.static_graph import StaticGraph
from gradmesh.trainer.ddp.timeline import Timeline
from gradmesh.trainer.ddp.usage import Usage, unused_in
from gradmesh.trainer.errors import ReductionError, UnfinishedReduction
from gradmesh.trainer.process_group import ProcessGroup

_log = logging.getLogger(__name__)


@final
class Reducer:
    """Average the gradients of some leaves over the ranks of a group.

    Args:
        leaves: The parameters, the same on every rank in the same order.
        specs: What the layout has to know of each.
        group: The ranks.
        options: What was asked for.
        timeline: Notes when things happen.
        delayed: Parameters that are reduced apart, or None.
    """

    def __init__(
        self,
        leaves: Sequence[Tensor],
        specs: Sequence[GradientSpec],
        group: ProcessGroup,
        options: ReducerOptions,
        timeline: Timeline,
        delayed: Delayed | None = None,
    ) -> None:
        self.leaves = list(leaves)
        self.specs = list(specs)
        self.group = group
        self.options = options
        self.divisor = group.size
        self.hook: Callable[[GradBucket], Future] | None = None
        self.hook_name = ""
        self.after: list[Callable[[Gradients], None]] = []
        """Called with the gradients when a pass went well on all ranks."""
        self.delayed = delayed
        self.usage = Usage(len(self.leaves))
        self.static = StaticGraph(len(self.leaves)) if options.static_graph else None
        self.has_rebuilt = False
        self.arrival: list[int] = []
        self.buckets_reduced = 0
        self.unused_here: list[int] = []
        self.graph_was_static = True
        self._timeline = timeline
        self._lock = threading.RLock()  # guards all that a pass changes
        self._pass: BackwardPass | None = None
        self._is_armed = False
        self._forwards = 0
        self._predicted: list[int] = []
        self.prediction = Usage(len(self.leaves))
        self.recorded: list[int] | None = None
        self.layout = Layout(self.leaves, self.specs, options.gradient_as_bucket_view)
        self.layout.build(self._initial(), group)
        self._handles: list[HookHandle] = []
        self._watch()

    def _initial(self) -> list[Assignment]:
        options = self.options
        limits = options.caps.initial_limits(
            static_graph=options.static_graph, find_unused=options.find_unused_parameters
        )
        # Parameters made last get their gradients first.
        return assign(self.specs, limits)[::-1]

    def _watch(self) -> None:
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
            self._handles += self.delayed.watch(ref)
        weakref.finalize(self, _let_go, self._handles, self.layout).atexit = False

    def release(self) -> None:
        """Stop watching the parameters; their gradients stay as they are."""
        _let_go(self._handles, self.layout)

    def check_finished(self) -> None:
        """Raise unless the last backward pass has ended.

        Raises:
            UnfinishedReduction: It has not.
        """
        state = self._pass
        if state is None:
            return
        waiting = [self.specs[i].name for i, ready in enumerate(state.ready) if not ready]
        raise UnfinishedReduction(
            f"rank {self.group.rank}: the last backward pass ended with an error before its"
            f" gradients were averaged (waiting for {', '.join(waiting[:20]) or 'nothing'}); other"
            " ranks may wait for this one: give all of them a new group with"
            " update_process_group, or start anew"
        )

    def rebuild(self) -> bool:
        """Lay buckets out by the order of arrival, once; collective. Return whether it did."""
        if self.has_rebuilt or self.recorded is None:
            return False
        order, self.recorded = self.recorded, None
        made = assign(self.specs, self.options.caps.limits, order)
        self.layout.build(agree(made, len(self.leaves), self.group), self.group)
        self.has_rebuilt = True
        return True

    def arm(self, outputs: Iterable[Tensor]) -> None:
        """Average the gradients of the passes that begin at these outputs."""
        found = list(outputs)
        self._forwards = self._forwards + 1 if self._is_armed else 1
        self._is_armed = True
        if self.options.is_dynamic:
            self._predicted = unused_in(found, self.leaves)
        for node in {id(t.grad_fn): t.grad_fn for t in found if t.grad_fn is not None}.values():
            add_hook(node, "hooks", self._on_output)

    def disarm(self) -> None:
        """Leave passes alone that begin at parameters."""
        self._is_armed = False

    def _on_output(self, grad: Any) -> Any:
        with self._lock:
            if self._pass is None:
                self._begin(gradient_map())
        return grad

    def _on_gradient(self, index: int) -> None:
        with self._lock:
            self.usage.note(index)
            state = self.current()
            if state is None:
                return
            if self.static is not None:
                due = self.static.arrive(index)
                if due < 0:
                    name = self.specs[index].name
                    state.faults.append(fault.changed([name], "got a gradient once more"))
                if due != 0:
                    return
            self._mark(state, index, is_used=True)

    def current(self) -> BackwardPass | None:
        """Return the pass under way, beginning it if this rank is armed; None for a local one."""
        state = self._pass
        into = gradient_map()
        if state is None:
            return self._begin(into) if self._is_armed else None
        if state.gradients.into is not into:
            raise ReductionError(
                f"rank {self.group.rank}: two backward passes run through the same module at once;"
                " let one end before the other begins"
            )
        return state

    def _begin(self, into: dict[Any, Any] | None) -> BackwardPass:
        state = self._pass = BackwardPass(into, len(self.leaves))
        self._timeline.mark("backward_compute_start")
        queue_callback(self._end)
        self.buckets_reduced = 0
        self.layout.begin_pass(has_map=into is not None)
        if self.delayed is not None:
            self.delayed.begin()
        if self.static is not None:
            self.static.begin()
            if self.static.is_known:
                self._mark_unused(state, self.static.unused())
        elif self.options.is_dynamic:
            # Within a context the graph goes on at other workers: only its end tells.
            is_certain = into is None and self._forwards == 1 and self._is_armed
            predicted = self._predicted if is_certain else []
            if self.options.skip_all_reduce_unused_params:
                self.predict(predicted)
            self._mark_unused(state, predicted)
        return state

    def predict(self, unused: Sequence[int]) -> None:
        """Tell the other ranks which parameters take no part, so that all skip the same."""
        self.prediction.reset()
        for index in set(range(len(self.leaves))).difference(unused):
            self.prediction.note(index)
        self.prediction.launch(self.group)

    def _mark_unused(self, state: BackwardPass, indices: Iterable[int]) -> None:
        for index in indices:
            self._mark(state, index, is_used=self.usage.is_used(index))

    def _mark(self, state: BackwardPass, index: int, is_used: bool) -> None:
        """Put a gradient into its bucket, and launch what is full."""
        if state.ready[index]:
            state.faults.append(fault.repeated(self.specs[index].name))
            return
        state.ready[index] = 1
        state.order.append(index)
        bucket, place = self.layout.places[index]
        grad = state.gradients.get(self.leaves[index])
        if not is_used:
            state.unused.add(index)
            if isinstance(bucket, DenseBucket) and grad is bucket.views[place]:
                state.kept[index] = grad.copy()
        if not self.options.batched_grad_copy:
            bucket.fill(place, grad)
        bucket.waiting -= 1
        if bucket.waiting == 0:
            if self.options.batched_grad_copy:
                for other, leaf in enumerate(bucket.leaves):
                    bucket.fill(other, state.gradients.get(leaf))
            self._launch_full(state)

    def _launch_full(self, state: BackwardPass) -> None:
        last = len(self.layout.buckets) - 1
        while state.next_bucket <= last:
            bucket = self.layout.buckets[state.next_bucket]
            if bucket.waiting:
                return
            if state.next_bucket == 0:
                self._timeline.mark("backward_comm_start")
            if self.may_skip(bucket):
                bucket.is_skipped = True
            else:
                self.launch(bucket, bool(state.faults))
            state.next_bucket += 1

    def launch(self, bucket: Bucket, status: bool) -> None:
        """Begin the reduction of a bucket; the last one carries the status."""
        is_last = bucket.index == len(self.layout.buckets) - 1
        bucket.launch(Launch(self.group, self.divisor, self.hook, status and is_last, is_last))
        self.buckets_reduced += 1

    def may_skip(self, bucket: Bucket) -> bool:
        """Tell whether no rank uses a bucket; all ranks come to the same answer."""
        if not self.options.skip_all_reduce_unused_params:
            return False
        used = None if self.static is None else self.static.used_on
        if self.options.is_dynamic:
            used = self.prediction.counts()
        return used is not None and not any(used[index] for index in bucket.members)

    def _end(self) -> None:
        """Finish the pass: send what is left, wait, write back."""
        state = self._pass
        assert state is not None
        self._timeline.mark("backward_compute_end")
        self._settle(state)
        learning = self.static is not None and self.static.used_on is None
        if self.options.is_dynamic or learning:
            self.usage.launch(self.group)
        status = self.launch_status(bool(state.faults))
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
        self._conclude(state, learning, reported)

    def _settle(self, state: BackwardPass) -> None:
        """Account for parameters without a gradient in this pass."""
        rest = [index for index, ready in enumerate(state.ready) if not ready]
        names = [self.specs[index].name for index in rest]
        learning = self.static is not None and not self.static.is_known
        if rest and not self.options.is_dynamic and not learning:
            if self.static is not None:
                state.faults.append(fault.changed(names, "got no gradient"))
            else:
                state.faults.append(fault.missing(names, self.options.find_unused_parameters))
        if self.delayed is not None:
            state.faults += self.delayed.settle(state.gradients)
        self._mark_unused(state, rest)

    def launch_status(self, status: bool) -> Future | None:
        """Send the status apart where no bucket carries it."""
        carried = self.layout.buckets and not self.layout.buckets[-1].is_skipped
        if carried and self.hook is None and self.delayed is None:
            return None
        flag = on_group(self.group, np.array([status], np.int32))
        work = self.group.all_reduce(flag)
        return Future.after(work, flag).then(lambda total: int(to_numpy(total)[0]))

    def _write_back(self, state: BackwardPass, bucket: Bucket) -> None:
        for place, index in enumerate(bucket.members):
            leaf = self.leaves[index]
            if index in state.unused and self._is_unused_everywhere(index):
                if index in state.kept:
                    copy_into(leaf.grad.data, state.kept[index])
            elif self.options.gradient_as_bucket_view:
                state.gradients.alias(leaf, bucket.result(place))
            else:
                state.gradients.put(leaf, bucket.result(place))

    def _is_unused_everywhere(self, index: int) -> bool:
        known = self.static is not None and self.static.used_on is not None
        counts = self.static.used_on if self.static is not None and known else self.usage.counts()
        return counts is None or not counts[index]

    def _conclude(self, state: BackwardPass, learning: bool, reported: bool) -> None:
        counts = self.usage.counts()
        self.layout.end_pass()
        self._pass = None
        self._is_armed = False
        self.usage.reset()
        if reported:
            fault.raise_reports(self.group, state.faults)
        if state.faults:
            raise fault.local_error(state.faults, self.group.rank)
        if self.static is not None:
            if learning:
                self.static.used_on = counts
            if not self.static.is_known:
                self.static.learn()
                state.order.clear()
        self._note(state)
        for callback in self.after:
            callback(state.gradients)

    def _note(self, state: BackwardPass) -> None:
        """Keep what the log and the rebuild want to know."""
        unused = sorted(state.unused)
        if self.arrival and unused != self.unused_here:
            self.graph_was_static = False
        if self.options.is_dynamic and not self.arrival and not unused:
            _log.warning("find_unused_parameters found none; leave it out if that is always so")
        self.unused_here = unused
        if len(state.order) == len(self.leaves):
            self.arrival = state.order
            if self.options.is_rebuilt and not self.has_rebuilt:
                self.recorded = list(state.order)

    def move_to(self, group: ProcessGroup) -> None:
        """Go on with another group: forget a pass that did not end, lay buckets out anew."""
        self.group = group
        self.divisor = group.size
        self._pass = None
        self._is_armed = False
        self.recorded = None
        self.has_rebuilt = False
        self.usage = Usage(len(self.leaves))
        if self.static is not None:
            self.static = StaticGraph(len(self.leaves))
        if self.delayed is not None:
            self.delayed.move_to(group)
        self.layout.build(self._initial(), group)

    @property
    def bucket_sizes(self) -> list[int]:
        """Bytes of each bucket."""
        return [bucket.nbytes for bucket in self.layout.buckets]


def _let_go(handles: list[HookHandle], layout: Layout) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()
    layout.release()
