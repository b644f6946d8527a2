"""The policy for gradients that are not finite, chosen for each table.

Client and server both apply it: the client before it adds up the gradients of repeated ids, the
server because it does not trust clients.
"""

import math
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from gradmesh.engine.kernels import all_finite, finite_copy
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array

_NAMES = ("reject", "clip", "allow")


@final
@dataclass(frozen=True, slots=True)
class BadGradients:
    """The policy for gradients that are NaN or infinite.

    Args:
        name: "reject", "clip" or "allow".
        settings: For "clip", the limit.

    Raises:
        InvalidRequest: The rule is unknown, or its limit is wrong.
    """

    name: str
    settings: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in _NAMES:
            raise InvalidRequest(
                f"no rule {self.name!r} for bad gradients; there are {', '.join(_NAMES)}"
            )
        wanted = {"limit"} if self.name == "clip" else set()
        limit = self.settings.get("limit", 1.0)
        if set(self.settings) != wanted or not (math.isfinite(limit) and limit > 0):
            raise InvalidRequest(
                f"bad gradients {self.name!r} take {wanted or 'no numbers'}, not {self.settings}"
            )

    @classmethod
    def reject(cls) -> "BadGradients":
        """Refuse the whole push, the default."""
        return cls("reject")

    @classmethod
    def clip(cls, limit: float) -> "BadGradients":
        """Set NaN to 0 and keep every element within ±limit."""
        return cls("clip", {"limit": limit})

    @classmethod
    def allow(cls) -> "BadGradients":
        """Apply them as they are."""
        return cls("allow")

    @classmethod
    def of(cls, recipe: table_pb2.Recipe) -> "BadGradients":
        """Return the rule that a recipe names; rejection if it names none."""
        return cls(recipe.name or "reject", dict(recipe.settings))

    def clean(self, grads: Array, table: str, borrowed: bool = False) -> Array:
        """Return gradients by this rule; the same array if nothing changes and it may be kept.

        Args:
            grads: The gradients.
            table: Name of their table, for the error.
            borrowed: Whether they are copied, because their memory is another process's: what it
                writes there after the check must not reach the table.

        Raises:
            InvalidRequest: One is NaN or infinite, and the rule is to reject that.
        """
        if self.name == "reject":
            kept = finite_copy(grads) if borrowed else grads if all_finite(grads) else None
            if kept is None:
                raise InvalidRequest(f"table {table!r}: a gradient is NaN or infinite", table=table)
            return kept
        grads = grads.copy() if borrowed else grads
        if self.name == "allow":
            return grads
        limit = self.settings["limit"]
        wide = grads.astype(np.float32) if grads.dtype.itemsize == 2 else grads
        finite = np.nan_to_num(wide, nan=0.0, posinf=limit, neginf=-limit)
        clipped: Array = np.clip(finite, -limit, limit).astype(grads.dtype)
        return clipped


def fit_grads(grads: object, shape: tuple[int, ...], table: str, dtype: np.dtype[Any]) -> Array:
    """Return gradients of a table in the type of its rows.

    Raises:
        InvalidRequest: Another shape, or not numbers.
    """
    array = np.asarray(grads)
    if array.shape != shape or array.dtype != dtype:
        if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
            raise InvalidRequest(
                f"table {table!r}: gradients must be {dtype}, not {array.dtype}", table=table
            )
        if array.shape != shape:
            raise InvalidRequest(
                f"table {table!r}: gradients of shape {array.shape} for ids of shape "
                f"{shape[:-1]}; expected {shape}",
                table=table,
            )
        with np.errstate(over="ignore"):
            array = array.astype(dtype)
    return array
