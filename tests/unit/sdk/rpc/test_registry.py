import uuid

import pytest

from gradmesh.protos.errors import FunctionNotFound, InvalidRequest
from gradmesh.sdk.rpc.registry import REGISTRY, Registry, register


def add(a: int, b: int) -> int:
    return a + b


def test_functions_are_found_by_name() -> None:
    registry = Registry()
    registry.register("math.add", add)
    registry.register("a", len)

    assert registry.find("math.add", "ps-0") is add
    assert registry.names() == ["a", "math.add"]


def test_the_same_function_may_be_registered_twice() -> None:
    registry = Registry()

    registry.register("add", add)
    registry.register("add", add)

    assert registry.names() == ["add"]


def test_two_functions_cannot_share_a_name() -> None:
    registry = Registry()
    registry.register("f", add)

    with pytest.raises(InvalidRequest, match="two functions are registered as 'f'"):
        registry.register("f", len)
    assert registry.find("f", "ps-0") is add


@pytest.mark.parametrize("name", ["", "a b", "<lambda>"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a name for a function"):
        Registry().register(name, add)


def test_an_unknown_function_is_named_with_the_worker_and_the_remedy() -> None:
    with pytest.raises(FunctionNotFound, match=r"ps-0 has no function 'f'; decorate it") as info:
        Registry().find("f", "ps-0")

    assert info.value.metadata == {"function": "f", "worker": "ps-0"}


def test_the_decorator_registers_and_returns_the_function() -> None:
    name = f"test.{uuid.uuid4().hex}"

    assert register(name=name)(add) is add
    assert register(add) is add

    assert REGISTRY.find(name, "ps-0") is add
    assert REGISTRY.find(f"{add.__module__}.add", "ps-0") is add
