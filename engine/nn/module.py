"""Module: parameters, buffers and submodules under names; and Parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self, TypeVar, final

from gradmesh.engine.autograd import HookHandle, Tensor
from gradmesh.engine.backend import Device, ShapeError, as_device, to_device
from gradmesh.engine.backend.dtype import as_dtype, is_float
from gradmesh.engine.nn.backward_hook import BackwardWatch


@final
class Parameter(Tensor):
    """A trainable tensor of a module.

    Args:
        data: Tensor or array, kept without a copy.
        requires_grad: Whether it is trained.
    """

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__(data.data if isinstance(data, Tensor) else data, requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


T = TypeVar("T")


class LoadReport(NamedTuple):
    """The names that did not match when a state was loaded."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """Base class of modules: holds parameters and submodules; subclasses define `forward`.

    Parameters, buffers and submodules are plain attributes; setting one registers its name.
    """

    training: bool

    def __init__(self) -> None:
        fields = self.__dict__
        fields["_parameters"] = {}
        fields["_buffers"] = {}
        fields["_transient"] = set()
        fields["_modules"] = {}
        fields["_forward_hooks"] = []
        fields["_forward_pre_hooks"] = []
        fields["_backward_hooks"] = []
        fields["training"] = True

    def forward(self, *args: Any, **options: Any) -> Any:
        """Compute the module's result."""
        raise TypeError(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run forward, with the hooks around it."""
        fields = self.__dict__
        for hook in fields["_forward_pre_hooks"]:
            changed = hook(self, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        if fields["_backward_hooks"]:
            watch = BackwardWatch(self, fields["_backward_hooks"])
            result = watch.results(self.forward(*watch.arguments(args), **options))
        else:
            result = self.forward(*args, **options)
        for hook in fields["_forward_hooks"]:
            changed = hook(self, args, result)
            if changed is not None:
                result = changed
        return result

    def __setattr__(self, name: str, value: Any) -> None:
        fields = self.__dict__
        if "_parameters" not in fields:
            raise AttributeError(
                f"call super().__init__() before setting {name!r} on {type(self).__name__}"
            )
        kind = _kind_of(value)
        for registry in ("_parameters", "_modules", "_buffers"):
            if registry != kind and name in fields[registry] and value is not None:
                if registry == "_buffers" and isinstance(value, Tensor):
                    kind = registry
                    continue
                del fields[registry][name]
            elif name in fields[registry]:
                kind = registry
        if kind is not None:
            fields[kind][name] = value
        fields[name] = value

    def __delattr__(self, name: str) -> None:
        for registry in ("_parameters", "_modules", "_buffers"):
            self.__dict__[registry].pop(name, None)
        del self.__dict__[name]

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter; None reserves the name."""
        self._parameters[name] = param
        self.__dict__[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is state but not trained; only persistent ones are saved."""
        self._buffers[name] = tensor
        self.__dict__[name] = tensor
        if not persistent:
            self._transient.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule."""
        self._modules[name] = module
        self.__dict__[name] = module

    def register_forward_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call hook(module, args, result) after each forward; it may return another result."""
        self._forward_hooks.append(hook)
        return HookHandle(self._forward_hooks, hook)

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call hook(module, args) before each forward; it may return other arguments."""
        self._forward_pre_hooks.append(hook)
        return HookHandle(self._forward_pre_hooks, hook)

    def register_full_backward_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call hook(module, grad_input, grad_output) when a backward pass has gone through.

        Both are tuples, of the gradients of the positional arguments and of the results that carry
        one; the hook may return other gradients of the arguments.
        """
        self._backward_hooks.append(hook)
        return HookHandle(self._backward_hooks, hook)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield this module and all below with their dotted names, each once."""
        yield from self._walk(prefix, set())

    def modules(self) -> Iterator[Module]:
        """Yield this module and all below, each once."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the direct submodules with their names."""
        for name, module in self._modules.items():
            if module is not None:
                yield name, module

    def children(self) -> Iterator[Module]:
        """Yield the direct submodules."""
        for _, module in self.named_children():
            yield module

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters with their dotted names, each once."""
        yield from self._named("_parameters", prefix, recurse)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, each once."""
        for _, param in self.named_parameters(recurse=recurse):
            yield param

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers with their dotted names, each once."""
        yield from self._named("_buffers", prefix, recurse)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers, each once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target: str) -> Module:
        """Return the module of a dotted name.

        Raises:
            AttributeError: If there is none.
        """
        return self._find(dict(self.named_modules()), target, "module")

    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter of a dotted name; raises as `get_submodule`."""
        return self._find(dict(self.named_parameters()), target, "parameter")

    def get_buffer(self, target: str) -> Tensor:
        """Return the buffer of a dotted name; raises as `get_submodule`."""
        return self._find(dict(self.named_buffers()), target, "buffer")

    def _find(self, named: dict[str, T], target: str, kind: str) -> T:
        if target not in named:
            raise AttributeError(f"{type(self).__name__} has no {kind} {target!r}")
        return named[target]

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Return parameters and persistent buffers by dotted name, on the module's own memory."""
        state: dict[str, Tensor] = {}
        for path, module in self._walk(prefix.rstrip("."), set()):
            dot = f"{path}." if path else ""
            for name, param in module._parameters.items():
                if param is not None:
                    state[dot + name] = param.detach()
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in module._transient:
                    state[dot + name] = buffer.detach()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> LoadReport:
        """Copy values into parameters and buffers by name.

        Raises:
            KeyError: If strict and names are missing or unexpected; nothing is changed then.
            ShapeError: If a shape differs; nothing is changed then.
        """
        own = self.state_dict()
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in own]
        if strict and (missing or unexpected):
            raise KeyError(
                f"state of {type(self).__name__}: missing {missing}, unexpected {unexpected}"
            )
        matched = {name: tensor for name, tensor in own.items() if name in state_dict}
        for name, tensor in matched.items():
            if tuple(state_dict[name].shape) != tensor.shape:
                raise ShapeError(
                    f"{name} has shape {tensor.shape}, saved is {tuple(state_dict[name].shape)}"
                )
        for name, tensor in matched.items():
            value = state_dict[name]
            value = value.data if isinstance(value, Tensor) else value
            tensor.data[...] = to_device(value, tensor.device)
            tensor.version[0] += 1
        return LoadReport(missing, unexpected)

    def train(self, mode: bool = True) -> Self:
        """Set training mode here and below."""
        for module in self.modules():
            module.__dict__["training"] = mode
        return self

    def eval(self) -> Self:
        """Set evaluation mode here and below."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether the parameters are trained."""
        for param in self.parameters():
            param.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters, or set them to 0."""
        for param in self.parameters():
            if set_to_none or param.grad is None or param.grad.is_sparse:
                param.grad = None
            else:
                param.grad.data[...] = 0

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call a function with every module below and then with this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def to(self, target: Any = None, dtype: Any = None, device: Any = None) -> Self:
        """Move parameters, their gradients and buffers to a device, float ones to a dtype."""
        if isinstance(target, Device) or (isinstance(target, str) and target[:3] in ("cpu", "cud")):
            device = target
        elif target is not None:
            dtype = target
        wanted = None if dtype is None else as_dtype(dtype)
        for tensor in (*self.parameters(), *self.buffers()):
            held = (tensor, tensor.grad) if isinstance(tensor.grad, Tensor) else (tensor,)
            for moved in held:
                if device is not None:
                    moved.data = to_device(moved.data, as_device(device))
                if wanted is not None and is_float(moved.dtype):
                    moved.data = moved.data.astype(wanted, copy=False)
                moved.version[0] += 1
        return self

    def cpu(self) -> Self:
        """Move parameters and buffers to host memory."""
        return self.to(device="cpu")

    def cuda(self, index: int = 0) -> Self:
        """Move parameters and buffers to a GPU."""
        return self.to(device=f"cuda:{index}")

    def float(self) -> Self:
        """Cast float parameters and buffers to float32."""
        return self.to(dtype="float32")

    def double(self) -> Self:
        """Cast float parameters and buffers to float64."""
        return self.to(dtype="float64")

    def can_fuse(self, following: Module) -> bool:
        """Return whether `forward_fused` computes this module and the following one at once."""
        return False

    def has_hooks(self) -> bool:
        """Return whether calling the module does more than its forward."""
        return bool(self._forward_hooks or self._forward_pre_hooks or self._backward_hooks)

    def extra_repr(self) -> str:
        """Return the text in brackets after the module's name."""
        return ""

    def __repr__(self) -> str:
        lines = [
            f"  ({name}): " + repr(module).replace("\n", "\n  ")
            for name, module in self.named_children()
        ]
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        return f"{type(self).__name__}(\n" + "\n".join(lines) + "\n)"

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _transient: set[str]
    _modules: dict[str, Module | None]
    _forward_hooks: list[Callable[..., Any]]
    _forward_pre_hooks: list[Callable[..., Any]]
    _backward_hooks: list[Callable[..., Any]]

    def _walk(self, prefix: str, seen: set[int]) -> Iterator[tuple[str, Module]]:
        if id(self) in seen:
            return
        seen.add(id(self))
        yield prefix, self
        for name, module in self.named_children():
            yield from module._walk(f"{prefix}.{name}" if prefix else name, seen)

    def _named(self, registry: str, prefix: str, recurse: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for path, module in self._walk(prefix, set()) if recurse else [(prefix, self)]:
            for name, value in module.__dict__[registry].items():
                if value is not None and id(value) not in seen:
                    seen.add(id(value))
                    yield (f"{path}.{name}" if path else name), value


def _kind_of(value: Any) -> str | None:
    if isinstance(value, Parameter):
        return "_parameters"
    return "_modules" if isinstance(value, Module) else None
