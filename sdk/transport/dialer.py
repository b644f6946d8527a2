"""How a process makes its channels: one place says what they share."""

from dataclasses import dataclass, field
from typing import final

from gradmesh.protos import limits
from gradmesh.sdk.process.security import SecurityConfig
from gradmesh.sdk.process.transport import LaneChoice
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.metrics import RpcMetrics

# A worker that cannot be reached for this long may be back at another address.
_PATIENCE_S = 2.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Dialer:
    """Makes a channel from an address and a name.

    Args:
        security: Certificates and token.
        metrics: Where calls are counted.
        lane: Which way hot calls take.
        max_frame_bytes: Largest message either way.
    """

    security: SecurityConfig | None = None
    metrics: RpcMetrics = field(default_factory=lambda: RpcMetrics("client"))
    lane: LaneChoice = "auto"
    max_frame_bytes: int = limits.MAX_FRAME_BYTES

    def __call__(self, address: str, name: str) -> Channel:
        """Return a channel to a worker."""
        return Channel(
            address,
            name,
            security=self.security,
            metrics=self.metrics,
            patience_s=_PATIENCE_S,
            max_frame_bytes=self.max_frame_bytes,
            lane=self.lane,
        )
