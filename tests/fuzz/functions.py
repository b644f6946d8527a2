"""What the parameter server under test lets others call."""

from __future__ import annotations

from typing import Any

import gradmesh as gm


@gm.rpc.register(name="fuzz.echo")
def echo(*values: Any, **named: Any) -> Any:
    return list(values) or named


@gm.rpc.register(name="fuzz.fails")
def fails(*values: Any, **named: Any) -> None:
    raise ValueError("it fails on request")


@gm.rpc.register(name="fuzz.Box")
class Box:
    """An object that a caller may make and keep."""

    def __init__(self, *values: Any) -> None:
        self._values = values

    def values(self) -> Any:
        return list(self._values)


NAMES = ("fuzz.echo", "fuzz.fails", "fuzz.Box", "values", "fuzz.missing")
"""Names of the functions and methods, and one that does not exist."""
