"""The registry of functions, classes and methods that peers may call, by name.

Nothing else can be called. Both ends use the registered name: code is never sent.
"""

from collections.abc import Callable
from typing import Any, TypeVar, final, overload

from gradmesh.protos.errors import FunctionNotFound, InvalidRequest
from gradmesh.protos.limits import check_name

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=type[Exception])

_ASYNC = "__gradmesh_async__"


@final
class Registry:
    """Functions, classes and exceptions by name."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        self._names: dict[Any, str] = {}
        self._methods: dict[type, frozenset[str]] = {}
        self._exceptions: dict[str, type[Exception]] = {}
        self._exception_names: dict[type[BaseException], str] = {}

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Let peers call a function, or make objects of a class and call their public methods.

        Raises:
            InvalidRequest: The name is invalid, or belongs to another function.
        """
        check_name("function", name)
        held = self._functions.get(name)
        if held is not None and held is not function:
            raise InvalidRequest(
                f"two functions are registered as {name!r}; give one another name", name=name
            )
        self._functions[name] = function
        self._names.setdefault(function, name)

    def register_exception(self, name: str, cls: type[Exception]) -> None:
        """Let an exception keep its type on the way to a caller.

        Raises:
            InvalidRequest: The name is invalid, or belongs to another class.
        """
        check_name("exception", name)
        if self._exceptions.setdefault(name, cls) is not cls:
            raise InvalidRequest(f"two exceptions are registered as {name!r}", name=name)
        self._exception_names.setdefault(cls, name)

    def find(self, name: str, worker: str) -> Callable[..., Any]:
        """Return a function; `Class.method` finds static and class methods of registered classes.

        Raises:
            FunctionNotFound: It is not registered here.
        """
        found = self._functions.get(name)
        if found is not None:
            return found
        owner, _, method = name.rpartition(".")
        cls = self._functions.get(owner)
        if isinstance(cls, type) and method in self.methods(cls):
            bound: Callable[..., Any] = getattr(cls, method)
            return bound
        raise FunctionNotFound(
            f"{worker} has no function {name!r}; decorate it with @gm.rpc.register and import its "
            "module there: code is not sent",
            function=name,
            worker=worker,
        )

    def method(self, obj: object, name: str, worker: str) -> Callable[..., Any]:
        """Return a method of an object whose class is registered.

        Raises:
            FunctionNotFound: The class is not registered, or has no such public method.
        """
        if name not in self.methods(type(obj)):
            raise FunctionNotFound(
                f"{worker} cannot call {name!r} of a {type(obj).__name__}; only public methods of "
                "classes decorated with @gm.rpc.register can be called",
                function=name,
                type=type(obj).__name__,
                worker=worker,
            )
        bound: Callable[..., Any] = getattr(obj, name)
        return bound

    def methods(self, cls: type) -> frozenset[str]:
        """Return the names of the methods that peers may call; empty if not registered."""
        known = self._methods.get(cls)
        if known is None:
            if cls not in self._names:
                return frozenset()
            known = frozenset(filter(lambda name: _is_method(cls, name), dir(cls)))
            self._methods[cls] = known
        return known

    def name_of(self, function: Callable[..., Any] | str) -> str:
        """Return the name that peers call a function by.

        Raises:
            InvalidRequest: It is not registered here.
        """
        if isinstance(function, str):
            return function
        try:
            name = self._names.get(function)
        except TypeError:  # not hashable
            name = None
        if name is not None:
            return name
        owner = getattr(function, "__self__", None)
        if isinstance(owner, type) and owner in self._names:
            return f"{self._names[owner]}.{function.__name__}"
        # A static method has no reference to its class.
        method = getattr(function, "__name__", "")
        for cls, held in self._names.items():
            if isinstance(cls, type) and getattr(cls, method, None) is function:
                return f"{held}.{method}"
        shown = getattr(function, "__qualname__", type(function).__name__)
        raise InvalidRequest(
            f"{shown} is not registered; decorate it, or its class, with @gm.rpc.register",
            function=shown,
        )

    def exception(self, name: str) -> type[Exception] | None:
        """Return a registered exception, if there is one of that name."""
        return self._exceptions.get(name)

    def exception_name(self, cls: type[BaseException]) -> str | None:
        """Return the name under which an exception is registered, if it is."""
        return self._exception_names.get(cls)

    def names(self) -> list[str]:
        """Return the names of all functions and classes."""
        return sorted(self._functions)


def _is_method(cls: type, name: str) -> bool:
    if name.startswith("_") and name != "__call__":
        return False
    return callable(getattr(cls, name, None)) and not isinstance(getattr(cls, name), type)


REGISTRY = Registry()
"""The registry that `register` adds to, and that a process serves by default."""


@overload
def register(function: F, /) -> F: ...
@overload
def register(*, name: str) -> Callable[[F], F]: ...
def register(function: F | None = None, /, *, name: str | None = None) -> F | Callable[[F], F]:
    """Register a function or class for calls from other workers; a decorator.

    Use it as `@gm.rpc.register` or `@gm.rpc.register(name="…")`. Of a class, other workers may
    create objects, call static and class methods, and call public methods of objects that they hold
    a reference to.

    Args:
        function: The function or class.
        name: Its name on all workers; by default its module and qualified name.
    """

    def add(function: F) -> F:
        REGISTRY.register(name or f"{function.__module__}.{function.__qualname__}", function)
        return function

    return add(function) if function is not None else add


@overload
def register_exception(cls: E, /) -> E: ...
@overload
def register_exception(*, name: str) -> Callable[[E], E]: ...
def register_exception(cls: E | None = None, /, *, name: str | None = None) -> E | Callable[[E], E]:
    """Register an exception class, so that callers receive the same type; a decorator.

    Args:
        cls: The exception class; created from one text at the caller.
        name: Its name on both ends; by default its module and qualified name.
    """

    def add(cls: E) -> E:
        REGISTRY.register_exception(name or f"{cls.__module__}.{cls.__qualname__}", cls)
        return cls

    return add(cls) if cls is not None else add


def async_execution(function: F) -> F:
    """Mark a function that returns a Future: its caller gets the future's result. A decorator.

    No thread blocks on the future. Apply it below `@gm.rpc.register`, `@staticmethod` and
    `@classmethod`:

        @gm.rpc.register
        @gm.rpc.async_execution
        def later(): ...
    """
    if not callable(function):
        raise TypeError(
            f"async_execution marks functions, not a {type(function).__name__}; put it below "
            "@staticmethod and @classmethod"
        )
    setattr(function, _ASYNC, True)
    return function


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function is marked with `async_execution`."""
    return bool(getattr(function, _ASYNC, False))
