"""Averages the gradients of dense parameters over the ranks of a process group."""

from collections.abc import Iterable, MutableMapping
from typing import Any, TypeAlias, final

import numpy as np

from gradmesh.engine.autograd import Tensor
from gradmesh.trainer.ddp.buckets import Bucket, digest, lay_out
from gradmesh.trainer.errors import CollectiveMismatch, MissingGradient
from gradmesh.trainer.process_group import ProcessGroup

GradientMap: TypeAlias = MutableMapping[Any, Any]


@final
class Reducer:
    """Keeps parameters equal on all ranks: same start, same averaged gradients.

    Construction is collective: it compares the parameters of all ranks and copies those of
    rank 0 to the others.

    Args:
        group: The ranks.
        parameters: Names and parameters, the same on every rank in the same order.
        bucket_bytes: Size at which gradients are sent on; None sends all at once.

    Raises:
        CollectiveMismatch: Ranks differ in names, shapes or dtypes; raised on all of them.
    """

    def __init__(
        self,
        group: ProcessGroup,
        parameters: Iterable[tuple[str, Tensor]],
        bucket_bytes: int | None = None,
    ) -> None:
        self._group = group
        self._parameters = dict(parameters)
        layout = [(name, p.shape, p.dtype) for name, p in self._parameters.items()]
        self._buckets = lay_out(layout, bucket_bytes)
        self._arrays = [np.zeros(bucket.size, bucket.dtype) for bucket in self._buckets]
        self._check_layout()
        self._broadcast()

    def reduce(self, gradients: GradientMap) -> None:
        """Replace the parameters' gradients by their averages over all ranks, in rank order.

        Args:
            gradients: Array by parameter, such as a context's map; other keys are left alone.
                The averages put there are views, good until the next call.

        Raises:
            MissingGradient: A parameter has no gradient; the map is unchanged.
        """
        missing = [name for name, leaf in self._parameters.items() if leaf not in gradients]
        if missing:
            raise MissingGradient(
                f"rank {self._group.rank}: {', '.join(missing)} took no part in the loss; use"
                " every parameter in forward, or leave it out of the reducer"
            )
        works = []
        for bucket, array in zip(self._buckets, self._arrays, strict=True):
            for name, view in _views(bucket, array):
                view[...] = gradients[self._parameters[name]]
            works.append(self._group.all_reduce(array, "avg"))
        for work in works:
            work.wait()
        for bucket, array in zip(self._buckets, self._arrays, strict=True):
            for name, view in _views(bucket, array):
                gradients[self._parameters[name]] = view

    def _check_layout(self) -> None:
        own = np.frombuffer(digest(self._buckets), np.uint8)
        all_digests = np.empty((self._group.size, own.size), np.uint8)
        self._group.all_gather(list(all_digests), own).wait()
        others = [r for r, theirs in enumerate(all_digests) if not (theirs == own).all()]
        if others:
            count = sum(array.size for array in self._arrays)
            raise CollectiveMismatch(
                f"rank {self._group.rank} has {len(self._parameters)} parameters with {count}"
                f" elements, rank {', '.join(map(str, others))} has others; build the same model"
                " on every rank"
            )

    def _broadcast(self) -> None:
        for bucket, array in zip(self._buckets, self._arrays, strict=True):
            for name, view in _views(bucket, array):
                view[...] = self._parameters[name].data
            self._group.broadcast(array, 0).wait()
            for name, view in _views(bucket, array):
                parameter = self._parameters[name]
                parameter.data[...] = view
                parameter.version[0] += 1


def _views(bucket: Bucket, array: Any) -> Iterable[tuple[str, Any]]:
    for entry in bucket.entries:
        part = array[entry.offset : entry.offset + entry.size]
        yield entry.name, part.reshape(entry.shape)
