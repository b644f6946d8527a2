"""Stand-ins for values elsewhere: calling a method of one calls it on the owner."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from gradmesh.sdk.future import Future

if TYPE_CHECKING:
    from gradmesh.sdk.rpc.rref.rref import RemoteType, RRef

Way: TypeAlias = Literal["sync", "async", "remote"]


@final
class Proxy:
    """Has the methods of the value that a reference refers to.

    The first use of a reference asks its owner which methods there are, so that a name that does
    not exist fails here.

    Args:
        rref: The reference.
        way: Wait, return a Future, or return an RRef.
        timeout_s: Of each call.
    """

    def __init__(self, rref: "RRef[Any]", way: Way, timeout_s: float | None) -> None:
        self._rref = rref
        self._way: Way = way
        self._timeout_s = timeout_s

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kind = self._rref.remote_type(self._timeout_s)
        if self._way != "async" or _is_known(kind):
            _check(kind.result(), name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs, kind)

        return call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the value itself."""
        return self.__getattr__("__call__")(*args, **kwargs)

    def _call(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        kind: "Future[RemoteType]",
    ) -> Any:
        rref, timeout_s = self._rref, self._timeout_s
        home, owner = rref._home, rref.owner_name()
        if self._way == "remote":
            return home.create(owner, name, args, kwargs, timeout_s, rref)
        if self._way == "sync":
            return home.call(owner, name, args, kwargs, timeout_s, rref).result()
        if _is_known(kind):
            return home.call(owner, name, args, kwargs, timeout_s, rref)
        answer: Future[Any] = Future()

        def known(kind: "Future[RemoteType]") -> None:
            try:
                _check(kind.result(), name)
                home.call(owner, name, args, kwargs, timeout_s, rref).add_done_callback(copy)
            except Exception as error:
                answer.set_exception(error)

        def copy(future: Future[Any]) -> None:
            error = future.exception()
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(future.result())

        kind.add_done_callback(known)
        return answer


def _is_known(kind: "Future[RemoteType]") -> bool:
    return kind.done() and kind.exception() is None


def _check(kind: "RemoteType", name: str) -> None:
    """Return if there is such a method.

    Raises:
        AttributeError: There is none that can be called.
    """
    if name not in kind.methods:
        why = "" if kind.methods else "; its class is not registered with @gm.remote"
        raise AttributeError(f"a {kind.name} has no method {name!r} to call from elsewhere{why}")
