"""Functions that peers may call, by name. Nothing else can be called from outside."""

from collections.abc import Callable
from typing import Any, TypeVar, final, overload

from gradmesh.protos.errors import FunctionNotFound, InvalidRequest
from gradmesh.protos.naming import check_name

F = TypeVar("F", bound=Callable[..., Any])


@final
class Registry:
    """Functions by name."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Let peers call a function.

        Raises:
            InvalidRequest: The name is none, or belongs to another function.
        """
        check_name("function", name)
        held = self._functions.get(name)
        if held is not None and held is not function:
            raise InvalidRequest(
                f"two functions want to be called {name!r}; give one another name", name=name
            )
        self._functions[name] = function

    def find(self, name: str, worker: str) -> Callable[..., Any]:
        """Return a function.

        Raises:
            FunctionNotFound: Nobody registered it here.
        """
        if name not in self._functions:
            raise FunctionNotFound(
                f"{worker} has no function {name!r}; decorate it with @gm.remote and import its "
                "module there",
                function=name,
                worker=worker,
            )
        return self._functions[name]

    def names(self) -> list[str]:
        """Return all names."""
        return sorted(self._functions)


REGISTRY = Registry()
"""What `remote` fills; a process serves it."""


@overload
def remote(function: F, /) -> F: ...
@overload
def remote(*, name: str) -> Callable[[F], F]: ...
def remote(function: F | None = None, /, *, name: str | None = None) -> F | Callable[[F], F]:
    """Let peers call a function, as `@gm.remote` or `@gm.remote(name="…")`.

    Args:
        function: The function.
        name: What peers call it; by default its module and qualified name.
    """

    def register(function: F) -> F:
        REGISTRY.register(name or f"{function.__module__}.{function.__qualname__}", function)
        return function

    return register(function) if function is not None else register
