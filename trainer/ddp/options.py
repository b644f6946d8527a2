"""The options of a wrapper that its reducer follows, and how ranks compare them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from gradmesh.trainer.ddp.buckets import BucketCaps


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReducerOptions:
    """What the reducer was asked for; the same on every rank."""

    caps: BucketCaps = field(default_factory=BucketCaps)
    """How big buckets grow."""
    find_unused_parameters: bool = False
    """Whether parameters may take no part in a pass."""
    gradient_as_bucket_view: bool = False
    """Whether `.grad` lies in the buckets."""
    static_graph: bool = False
    """Whether every pass has the same graph."""
    skip_all_reduce_unused_params: bool = False
    """Whether buckets that no rank uses are left out."""
    batched_grad_copy: bool = False
    """Whether a bucket is filled when its last gradient is there."""

    @property
    def is_dynamic(self) -> bool:
        """Whether ranks tell each other in every pass what they used."""
        return self.find_unused_parameters and not self.static_graph

    @property
    def is_rebuilt(self) -> bool:
        """Whether buckets are laid out anew by the order of arrival."""
        return not self.is_dynamic

    def describe(self) -> list[tuple[str, str]]:
        """Return what ranks compare."""
        return [
            ("option bucket caps", f"{self.caps.limits}"),
            ("option find_unused_parameters", f"{self.find_unused_parameters}"),
            ("option static_graph", f"{self.static_graph}"),
            ("option skip_all_reduce_unused_params", f"{self.skip_all_reduce_unused_params}"),
        ]
