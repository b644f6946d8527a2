"""The options of a reducer: bucket sizes, unused parameters, static graph."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import final

MIB = 1 << 20
FIRST_CAP_BYTES = 1 * MIB
CAP_BYTES = 25 * MIB
NO_LIMIT = sys.maxsize


@final
@dataclass(frozen=True, slots=True)
class BucketCaps:
    """Sizes at which buckets close: a bucket closes as soon as it reaches its cap.

    Raises:
        ValueError: If a cap is negative, or the list is empty.
    """

    cap_mb: float | None = None
    """Cap in MiB of all buckets, 0 for one a parameter; None means 25 with a first bucket of 1."""
    caps_mb: tuple[float, ...] | None = None
    """Caps of the first, second, ... bucket; the last one applies to all further ones."""

    def __post_init__(self) -> None:
        if self.caps_mb is not None and not self.caps_mb:
            raise ValueError("bucket_cap_mb_list is empty; give one cap or more, or None")
        for cap in (self.cap_mb, *(self.caps_mb or ())):
            if cap is not None and cap < 0:
                raise ValueError(f"a bucket cap of {cap} MiB; caps are 0 or more")

    @property
    def cap_bytes(self) -> int:
        """The largest cap."""
        if self.caps_mb is not None:
            return _bytes(max(self.caps_mb))
        return CAP_BYTES if self.cap_mb is None else _bytes(self.cap_mb)

    @property
    def limits(self) -> list[int]:
        """Caps in bytes of the first, second, ... bucket; the last applies to all further ones."""
        if self.caps_mb is not None:
            return [_bytes(cap) for cap in self.caps_mb]
        return [FIRST_CAP_BYTES, CAP_BYTES] if self.cap_mb is None else [self.cap_bytes]

    def initial_limits(self, *, static_graph: bool, find_unused: bool) -> list[int]:
        """Return the caps of the first assignment.

        If buckets will be rebuilt, the first assignment has one bucket for each dtype and device:
        the order of gradients is not known yet.
        """
        if self.caps_mb is not None or (find_unused and not static_graph):
            return self.limits
        return [NO_LIMIT]


def _bytes(mebibytes: float) -> int:
    return int(mebibytes * MIB)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReducerOptions:
    """Options of the reducer; the same on every rank."""

    caps: BucketCaps = field(default_factory=BucketCaps)
    """Sizes at which buckets close."""
    find_unused_parameters: bool = False
    """Whether parameters may be unused in a pass."""
    gradient_as_bucket_view: bool = False
    """Whether `.grad` lies in the buckets."""
    static_graph: bool = False
    """Whether every pass has the same graph."""
    skip_all_reduce_unused_params: bool = False
    """Whether buckets that no rank uses are skipped."""
    batched_grad_copy: bool = False
    """Whether a bucket is filled when its last gradient is ready."""

    @property
    def is_dynamic(self) -> bool:
        """Whether ranks exchange in every pass which parameters they used."""
        return self.find_unused_parameters and not self.static_graph

    @property
    def is_rebuilt(self) -> bool:
        """Whether buckets are rebuilt once by the order of arrival."""
        return not self.is_dynamic

    def describe(self) -> list[tuple[str, str]]:
        """Return the options that ranks compare."""
        return [
            ("option bucket caps", f"{self.caps.limits}"),
            ("option find_unused_parameters", f"{self.find_unused_parameters}"),
            ("option static_graph", f"{self.static_graph}"),
            ("option skip_all_reduce_unused_params", f"{self.skip_all_reduce_unused_params}"),
        ]
