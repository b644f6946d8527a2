"""RemoteModule: a module on another worker, used like a local one."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self, final

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend.array import as_device
from gradmesh.engine.nn import Module, Parameter
from gradmesh.protos.common.v1 import value_pb2
from gradmesh.protos.errors import InvalidFrame, InvalidRequest
from gradmesh.sdk.future import Future
from gradmesh.sdk.rpc.current import collect, current_agent
from gradmesh.sdk.rpc.registry import REGISTRY
from gradmesh.sdk.rpc.rref.rref import RRef
from gradmesh.sdk.rpc.values import ModuleCodec, install_module_codec

_CREATE = "gradmesh.remote_module.create"
_FORWARD = "gradmesh.remote_module.forward"
_PARAMETERS = "gradmesh.remote_module.parameters"
_TRAIN = "gradmesh.remote_module.train"


@final
class RemoteModule(Module):
    """A module on another worker; calling it runs its forward there.

    Its parameters stay on that worker, so methods that need them locally raise ValueError: use
    `remote_parameters` and `get_module_rref`. It can be sent in arguments and results of calls, as
    the reference that it holds, and works the same on the receiver.

    Args:
        remote_device: "worker/device" or "rank:n/device"; the device is "cpu" if left out.
        module_cls: Class of the module, or its name; registered with @gm.rpc.register, as the
            engine's own are.
        args: Its positional arguments.
        kwargs: Its named arguments.

    Raises:
        InvalidRequest: The remote device is invalid, or the class is not registered.
        WorkerNotFound: There is no such worker.
        Exception: What the module's constructor raised.
    """

    def __init__(
        self,
        remote_device: str,
        module_cls: type[Module] | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        agent = current_agent()
        to, self.device = _place(remote_device)
        made = (agent.functions.name_of(module_cls), list(args), dict(kwargs or {}), self.device)
        self.module_rref: RRef[Module] = agent.caller.create(to, _CREATE, made, {}, None)
        # Report an error of the constructor here, not at the first forward.
        kind = self.module_rref.remote_type().result()
        self._name = kind.name

    @classmethod
    def init_from_module_rref(cls, remote_device: str, module_rref: RRef[Module]) -> "RemoteModule":
        """Return a module around one that exists.

        Args:
            remote_device: The device that inputs are moved to; its worker must be the reference's
                owner.
            module_rref: Reference to the module.

        Raises:
            InvalidRequest: The owner is another worker.
        """
        to, device = _place(remote_device)
        owner = current_agent().caller.find(to).name
        if owner != module_rref.owner_name():
            raise InvalidRequest(
                f"the module is on {module_rref.owner_name()!r}, not on {owner!r}", worker=owner
            )
        return cls._around(module_rref, device, module_rref.remote_type().result().name)

    @classmethod
    def _around(cls, module_rref: RRef[Module], device: str, name: str) -> "RemoteModule":
        made = cls.__new__(cls)
        Module.__init__(made)
        made.device = device
        made.module_rref = module_rref
        made._name = name
        return made

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward on its worker and wait for the result."""
        return self._call(args, kwargs).result()

    def forward_async(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the module's forward on its worker; return the future of the result."""
        return collect(self._call(args, kwargs))

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Future[Any]:
        caller = current_agent().caller
        owner = self.module_rref.owner_name()
        passed = (self.module_rref, self.device, list(args), dict(kwargs))
        return caller.call(owner, _FORWARD, passed, {}, None)

    def remote_parameters(self, recurse: bool = True) -> list[RRef[Parameter]]:
        """Return references to the module's parameters, in its order."""
        caller = current_agent().caller
        owner = self.module_rref.owner_name()
        found: list[RRef[Parameter]] = caller.call(
            owner, _PARAMETERS, (self.module_rref, recurse), {}, None
        ).result()
        return found

    def get_module_rref(self) -> RRef[Module]:
        """Return the reference to the module itself."""
        return self.module_rref

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode of the module on its worker."""
        caller = current_agent().caller
        owner = self.module_rref.owner_name()
        caller.call(owner, _TRAIN, (self.module_rref, mode), {}, None).result()
        self.training = mode
        return self

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError(
            "the parameters of a RemoteModule are on its worker; use remote_parameters(), or call "
            "methods of the module through get_module_rref()"
        )

    register_parameter = _refuse
    register_buffer = _refuse
    add_module = _refuse
    named_parameters = _refuse
    parameters = _refuse
    named_buffers = _refuse
    buffers = _refuse
    children = _refuse
    named_modules = _refuse
    modules = _refuse
    state_dict = _refuse
    load_state_dict = _refuse
    requires_grad_ = _refuse
    zero_grad = _refuse
    apply = _refuse
    to = _refuse
    float = _refuse
    double = _refuse

    def extra_repr(self) -> str:
        """Show class, worker and device."""
        return f"{self._name} on {self.module_rref.owner_name()}/{self.device}"


def _place(remote_device: str) -> tuple[str | int, str]:
    """Return the worker and the device of "worker/device".

    Raises:
        InvalidRequest: It is malformed, or there is no such device.
    """
    if not isinstance(remote_device, str):
        raise InvalidRequest(f'a remote device is "worker/device", not {remote_device!r}')
    worker, slash, device = remote_device.partition("/")
    place = device if slash else "cpu"
    try:
        as_device(place)
    except Exception:
        raise InvalidRequest(f"{remote_device!r}: there is no device {place!r}") from None
    if worker.startswith("rank:"):
        if not worker[5:].isdecimal():
            raise InvalidRequest(f"{remote_device!r}: {worker[5:]!r} is not a rank")
        return int(worker[5:]), place
    if not worker or "/" in device:
        raise InvalidRequest(f'{remote_device!r} is not a remote device; use "worker/device"')
    return worker, place


def _create(name: str, args: list[Any], kwargs: dict[str, Any], device: str) -> Module:
    """Create a module on this worker."""
    agent = current_agent()
    cls = agent.functions.find(name, agent.name)
    if not isinstance(cls, type) or not issubclass(cls, Module):
        raise InvalidRequest(f"{name} is not a module class", function=name)
    module = cls(*args, **kwargs)
    return module if device == "cpu" else module.to(device)


def _forward(rref: RRef[Module], device: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Run a module of this worker."""
    module = rref.local_value()
    if device == "cpu":
        return module(*args, **kwargs)
    moved = {name: _move(value, device) for name, value in kwargs.items()}
    return _move(module(*[_move(value, device) for value in args], **moved), "cpu")


def _move(value: Any, device: str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, list | tuple):
        return type(value)(_move(item, device) for item in value)
    if isinstance(value, dict):
        return {name: _move(item, device) for name, item in value.items()}
    return value


def _parameters(rref: RRef[Module], recurse: bool) -> list[RRef[Parameter]]:
    """Return references to the parameters of a module of this worker."""
    return [RRef(param) for param in rref.local_value().parameters(recurse)]


def _train(rref: RRef[Module], mode: bool) -> None:
    """Set training or evaluation mode of a module of this worker."""
    rref.local_value().train(mode)


def _write(module: RemoteModule) -> tuple[RRef[Module], value_pb2.ModuleValue]:
    """Return the reference and the wire message of a module."""
    value = value_pb2.ModuleValue(device=module.device, type=module._name, training=module.training)
    return module.module_rref, value


def _read(rref: RRef[Module], value: value_pb2.ModuleValue) -> RemoteModule:
    """Return a module from its reference and wire message.

    Raises:
        InvalidFrame: There is no device of that name.
    """
    try:
        as_device(value.device)
    except Exception:
        raise InvalidFrame(f"a remote module on {value.device!r}, which is not a device") from None
    module = RemoteModule._around(rref, value.device, value.type)
    module.training = value.training
    return module


install_module_codec(ModuleCodec(RemoteModule, _write, _read))
REGISTRY.register(_CREATE, _create)
REGISTRY.register(_FORWARD, _forward)
REGISTRY.register(_PARAMETERS, _parameters)
REGISTRY.register(_TRAIN, _train)
