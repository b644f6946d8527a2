"""Parameter: a leaf that a module owns and an optimizer updates."""

from __future__ import annotations

from typing import Any, final

from gradmesh.engine.autograd import Tensor


@final
class Parameter(Tensor):
    """Be a module's parameter.

    Args:
        data: Tensor or array, kept without a copy.
        requires_grad: Whether it is trained.
    """

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__(data.data if isinstance(data, Tensor) else data, requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"
