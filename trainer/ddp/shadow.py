"""What a rank does in the passes of the others when its own inputs are used up."""

from __future__ import annotations

from gradmesh.trainer.ddp import fault
from gradmesh.trainer.ddp.reducer import Reducer


def shadow_pass(reducer: Reducer) -> None:
    """Take part in one pass with zeros: the same collectives in the same order; collective.

    Raises:
        ReductionError: Another rank has a fault.
    """
    reducer.layout.part()
    dynamic = reducer.options.is_dynamic
    if dynamic and reducer.options.skip_all_reduce_unused_params:
        reducer.predict(range(len(reducer.leaves)))
    for bucket in reducer.layout.buckets:
        bucket.reset()
        for place in range(len(bucket.members)):
            bucket.fill(place, None)
        if reducer.may_skip(bucket):
            bucket.is_skipped = True
        else:
            reducer.launch(bucket, False)
    static = reducer.static
    learning = static is not None and static.used_on is None
    reducer.usage.reset()
    if dynamic or learning:
        reducer.usage.launch(reducer.group)
    status = reducer.launch_status(False)
    waited = [bucket.wait() for bucket in reducer.layout.buckets if not bucket.is_skipped]
    reported = any(waited) or (status is not None and bool(status.wait()))
    counts = reducer.usage.counts()
    if static is not None and learning:
        static.used_on = counts
    elif reducer.options.is_rebuilt and not reducer.has_rebuilt and reducer.recorded is None:
        reducer.recorded = list(range(len(reducer.leaves)))
    if reported:
        fault.raise_reports(reducer.group, [])
