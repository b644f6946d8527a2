"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

from gradmesh.engine.nn.module import Module


@final
class Sequential(Module):
    """Run modules in order, each on the result of the previous one.

    Args:
        modules: The modules, or one mapping from names to modules.
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        is_named = len(modules) == 1 and isinstance(modules[0], Mapping)
        for name, module in modules[0].items() if is_named else enumerate(modules):
            self.add_module(str(name), module)

    def forward(self, x: Any) -> Any:
        """Return the last module's result; a layer and the ReLU after it run as one op."""
        modules: list[Any] = list(self._modules.values())
        position = 0
        while position < len(modules):
            module = modules[position]
            if position + 1 < len(modules) and module.can_fuse(modules[position + 1]):
                x = module.forward_fused(x)
                position += 2
            else:
                x = module(x)
                position += 1
        return x

    def append(self, module: Module) -> Sequential:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def __getitem__(self, position: int | slice) -> Any:
        if isinstance(position, slice):
            return Sequential(dict(list(self._modules.items())[position]))
        return list(self.children())[position]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return self.children()


@final
class ModuleList(Module):
    """Hold submodules in a list.

    Args:
        modules: What the list starts with.
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def append(self, module: Module) -> ModuleList:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def __getitem__(self, position: int) -> Any:
        return list(self._modules.values())[position]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())


@final
class ModuleDict(Module):
    """Hold submodules by name.

    Args:
        modules: What the dict starts with.
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        for name, module in (modules or {}).items():
            self.add_module(name, module)

    def __getitem__(self, name: str) -> Any:
        return self._modules[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def keys(self) -> Iterable[str]:
        """Return the names."""
        return self._modules.keys()

    def values(self) -> Iterable[Any]:
        """Return the modules."""
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return names and modules."""
        return self._modules.items()
