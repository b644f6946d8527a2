"""References to values on other workers: RRef, and its proxy for calls on the value."""

from collections.abc import Callable, Mapping, Sequence
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    final,
)

from gradmesh.engine.autograd import Tensor
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import RefNotFound
from gradmesh.sdk.future import Future, failed
from gradmesh.sdk.rpc.current import current_agent
from gradmesh.sdk.rpc.ids import IdCounter, WorkerId, WorkerInfo
from gradmesh.sdk.rpc.recording import recorder
from gradmesh.sdk.rpc.rref.owners import OwnedValue
from gradmesh.sdk.rpc.rref.users import UserRef

T = TypeVar("T")


CallMode: TypeAlias = Literal["sync", "async", "remote"]


@final
class RRefProxy:
    """A proxy with the methods of the value that a reference refers to.

    The first use of a reference fetches the method names from its owner, so that a name that does
    not exist fails here.

    Args:
        rref: The reference.
        way: How to call: wait, return a Future, or return an RRef.
        timeout_s: Of each call.
    """

    def __init__(self, rref: "RRef[Any]", way: CallMode, timeout_s: float | None) -> None:
        self._rref = rref
        self._way: CallMode = way
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
    """Check that the type has a method that can be called.

    Raises:
        AttributeError: It has none of that name.
    """
    if name not in kind.methods:
        why = "" if kind.methods else "; its class is not registered with @gm.rpc.register"
        raise AttributeError(f"a {kind.name} has no method {name!r} that peers can call{why}")


class RemoteType(NamedTuple):
    """The type of an owned value.

    Args:
        name: Name of its class.
        methods: Names of the methods that can be called.
    """

    name: str
    methods: frozenset[str]


class RRefClient(Protocol):
    """The interface of references to the agent of their worker."""

    name: str
    closed: bool

    def info_of(self, worker: WorkerId) -> WorkerInfo:
        """Return a worker as a WorkerInfo."""

    def new_keys(self) -> IdCounter:
        """Return the id generator of this worker."""

    def await_creation(self, used: UserRef, timeout_s: float | None) -> None:
        """Wait for the creation of a value on this thread, where that saves another one."""

    def fetch(self, used: UserRef, timeout_s: float | None) -> Future[Any]:
        """Ask the owner for a copy of the value."""

    def describe_ref(self, used: UserRef, timeout_s: float | None) -> Future[RemoteType]:
        """Ask the owner for the class of the value."""

    def local_type(self, value: object) -> RemoteType:
        """Return the type of a value of this worker."""

    def call(
        self,
        to: str,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout_s: float | None,
        target: "RRef[Any] | None" = None,
    ) -> Future[Any]:
        """Call a function, or a method of an owned value."""

    def create(
        self,
        to: str,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout_s: float | None,
        target: "RRef[Any] | None" = None,
    ) -> "RRef[Any]":
        """Call a function, or a method of an owned value, and keep the result on its worker."""


@final
class RRef(Generic[T]):
    """A reference to a value on some worker; the value lives while a reference to it does.

    `RRef(value)` makes one to a value of this process. References can be sent in arguments and
    results.

    Args:
        value: The value.

    Raises:
        RpcNotRunning: This process has not called `gm.rpc.init`.
    """

    __slots__ = ("__weakref__", "_home", "_kept", "_type", "_used")

    def __init__(self, value: T) -> None:
        home: RRefClient = current_agent().caller
        kept = OwnedValue(home.new_keys().new())
        kept.outcome.set_result(value)
        self._set(home, kept, None)

    def _set(self, home: RRefClient, kept: OwnedValue | None, used: UserRef | None) -> None:
        self._home = home
        self._kept = kept
        self._used = used
        self._type: Future[RemoteType] | None = None

    @classmethod
    def _of_owner(cls, home: RRefClient, kept: OwnedValue) -> "RRef[T]":
        made = cls.__new__(cls)
        made._set(home, kept, None)
        return made

    @classmethod
    def _of_user(cls, home: RRefClient, used: UserRef) -> "RRef[T]":
        made = cls.__new__(cls)
        made._set(home, None, used)
        return made

    def to_here(self, timeout_s: float | None = None) -> T:
        """Wait for the value and return a copy of it; on its owner, the value itself.

        Args:
            timeout_s: How long; the default of rpc if None, `math.inf` for no limit.

        Raises:
            RefNotFound: It was deleted, its creation failed, or its owner is gone.
            DeadlineExceeded: The value was not ready in time.
            Exception: What the function that creates the value raised.
        """
        if self._kept is not None:
            self._check_open()
            return cast(T, self._kept.outcome.result(timeout_s))
        self._home.await_creation(self._usable(), timeout_s)
        return cast(T, self._home.fetch(self._usable(), timeout_s).result())

    def local_value(self) -> T:
        """Return the value; can be called on its owner only.

        Raises:
            RuntimeError: This worker is not the owner.
            Exception: What the function that creates the value raised.
        """
        if self._kept is None:
            raise RuntimeError(
                f"{self}: the value is on {self.owner_name()}, not on {self._home.name}; "
                "use to_here() for a copy"
            )
        return cast(T, self._kept.outcome.result())

    def owner(self) -> WorkerInfo:
        """Return the worker that owns the value."""
        if self._used is None:
            return self._home.info_of(WorkerId(self._home.name))
        return self._home.info_of(self._used.owner)

    def owner_name(self) -> str:
        """Return the name of the worker that owns the value."""
        return self._home.name if self._used is None else self._used.owner.name

    def is_owner(self) -> bool:
        """Return whether this worker owns the value."""
        return self._used is None

    def confirmed_by_owner(self) -> bool:
        """Return whether the owner has registered this reference."""
        if self._used is None:
            return True
        return self._used.confirmed.done() and self._used.confirmed.exception() is None

    def rpc_sync(self, timeout_s: float | None = None) -> RRefProxy:
        """Return a proxy: `rref.rpc_sync().method(…)` calls the method on the owner and waits."""
        return RRefProxy(self, "sync", timeout_s)

    def rpc_async(self, timeout_s: float | None = None) -> RRefProxy:
        """Return a proxy: `rref.rpc_async().method(…)` returns a Future of the result."""
        return RRefProxy(self, "async", timeout_s)

    def remote(self, timeout_s: float | None = None) -> RRefProxy:
        """Return a proxy: `rref.remote().method(…)` returns an RRef to the result."""
        return RRefProxy(self, "remote", timeout_s)

    def backward(self, context: Any = None, retain_graph: bool = False) -> None:
        """Run a backward pass from the value, a scalar tensor, on its owner.

        Args:
            context: Distributed-autograd context, or its id; optional on the owner, where gradients
                then go to `.grad`.
            retain_graph: Keep the graph for another pass.

        Raises:
            RuntimeError: The value is on another worker and no context was given, or it is not a
                tensor that can be the root of a backward pass.
        """
        found = getattr(context, "id", context)
        if self._kept is not None:
            run_backward(self.local_value(), found, retain_graph)
            return
        if found is None:
            raise RuntimeError(f"{self}: backward on another worker needs a context")
        where = (found.worker, found.incarnation, found.counter)
        args = (self, where, retain_graph)
        self._home.call(self.owner_name(), "gradmesh.rref.backward", args, {}, None).result()

    def remote_type(self, timeout_s: float | None = None) -> Future[RemoteType]:
        """Return a future of the value's type, fetched once and then cached."""
        known = self._type
        # A failure is not cached; the next attempt may succeed.
        if known is None or (known.done() and known.exception() is not None):
            if self._kept is not None:
                home = self._home
                known = self._kept.outcome.then(lambda f: home.local_type(f.result()))
            else:
                known = self._describe(timeout_s)
            self._type = known
        return known

    def _describe(self, timeout_s: float | None) -> Future[RemoteType]:
        try:
            used = self._usable()
        except RefNotFound as error:
            if error.__cause__ is None:
                raise
            return failed(error)  # its creation failed; the future reports it
        return self._home.describe_ref(used, timeout_s)

    def _usable(self) -> UserRef:
        """Return the reference if it can be used.

        Raises:
            RefNotFound: Its creation failed, or it was deleted.
        """
        self._check_open()
        used = self._used
        assert used is not None
        if used.deleted:
            raise RefNotFound(f"{self}: the reference was deleted", worker=used.owner.name)
        if used.confirmed.done() and (error := used.confirmed.exception()) is not None:
            raise RefNotFound(
                f"{self}: creation failed, or may have: {error}", worker=used.owner.name
            ) from error
        return used

    def _check_open(self) -> None:
        if self._home.closed:
            raise RefNotFound(f"{self}: rpc was shut down; the reference is gone")

    def __reduce__(self) -> Any:
        raise TypeError("an RRef can be sent in calls only; it cannot be pickled")

    def __repr__(self) -> str:
        if self._used is None:
            assert self._kept is not None
            return f"OwnerRRef({self._kept.key})"
        return f"UserRRef(RRefId = {self._used.key}, ForkId = {self._used.fork})"


def run_backward(root: object, context: context_pb2.ContextId | None, retain_graph: bool) -> None:
    """Run a backward pass from a value of this worker.

    Raises:
        RuntimeError: It is not a tensor of one element that requires gradients.
    """
    if not isinstance(root, Tensor):
        raise RuntimeError(f"backward needs a reference to a tensor, not to {type(root).__name__}")
    if not root.requires_grad:
        raise RuntimeError("backward needs a tensor that requires gradients")
    if root.numel() != 1:
        raise RuntimeError(f"backward needs a tensor of one element, not of shape {root.shape}")
    recorder().backward(root, context, retain_graph)
