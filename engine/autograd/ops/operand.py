"""What an operator can take besides tensors."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.backend import DtypeError


def check_operands(name: str, a: Any, b: Any) -> None:
    """Raise unless both operands are tensors, arrays or numbers, and one has a dtype.

    Raises:
        DtypeError: If they are not.
    """
    for operand in (a, b):
        if not hasattr(operand, "dtype") and not isinstance(operand, (int, float)):
            raise DtypeError(f"{name}: takes tensors and numbers, not {type(operand).__name__}")
    if not hasattr(a, "dtype") and not hasattr(b, "dtype"):
        raise DtypeError(f"{name}: takes a tensor and a number or two tensors, not two numbers")
