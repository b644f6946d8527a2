"""What happens when a call has ended."""

from typing import final

from gradmesh.sdk.rpc.rref.exchange import Lending


@final
class Over:
    """What happens when a call has ended.

    Args:
        lending: The references it carried.
        kept: What must live until then.
    """

    __slots__ = ("_kept", "_lending")

    def __init__(self, lending: Lending, kept: object) -> None:
        self._lending = lending
        self._kept = kept

    def __call__(self, answered: bool) -> None:
        """Let go of what the call needed."""
        # After a call of unknown fate the receiver may still ask for its references.
        if answered:
            self._lending.arrived()
        self._kept = None
