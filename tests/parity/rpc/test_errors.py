"""Errors of a remote worker arrive with their type."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from rpc_functions import (
    NeedsTwo,
    Registered,
    add,
    echo,
    raise_kind,
    raise_type,
    raise_value,
    sleep,
)

import gradmesh as gm
from gradmesh.protos import errors
from gradmesh.sdk.rpc.agent import Agent


def only_here() -> None:
    pass


def test_py_function_exception() -> None:
    with pytest.raises(TypeError, match="unsupported operand") as info:
        gm.rpc_sync("worker-0", raise_type)

    assert "raise_type on worker-0" in str(info.value)
    assert 'return 1 + "x"' in str(info.value)
    assert info.value.remote_worker == "worker-0"  # type: ignore[attr-defined]
    assert "Traceback" in info.value.remote_traceback  # type: ignore[attr-defined]


def test_py_raise_in_user_func() -> None:
    with pytest.raises(ValueError, match="expected error"):
        gm.rpc_sync("worker-0", raise_value)
    with pytest.raises(ValueError, match="expected error"):
        gm.rpc_async("worker-0", raise_value).wait()


def test_py_raise_in_user_func_escaped_str() -> None:
    with pytest.raises(ValueError) as value:  # noqa: PT011
        gm.rpc_sync("worker-0", raise_value, ("first\nsecond",))
    with pytest.raises(KeyError) as key:
        gm.rpc_sync("worker-0", raise_kind, ("key",))

    assert str(value.value).startswith("first\nsecond\n")
    assert str(key.value).startswith("line one\nline two\n")


def test_registered_exceptions_keep_their_type() -> None:
    with pytest.raises(Registered, match="the text"):
        gm.rpc_sync("worker-0", raise_kind, ("registered",))


@pytest.mark.parametrize("kind", ["two", "unregistered", "unicode", "stop", "exit"])
def test_custom_exception_throw_during_reconstruction(kind: str) -> None:
    with pytest.raises(errors.RemoteFailure, match="raise_kind on worker-0 raised") as info:
        gm.rpc_sync("worker-0", raise_kind, (kind,))

    assert isinstance(info.value, RuntimeError)
    assert not isinstance(info.value, NeedsTwo)
    if kind in ("two", "unregistered"):
        assert "the" in str(info.value)
        assert "text" in str(info.value)


def test_function_not_on_callee(eventually: Any) -> None:
    gm.rpc.register(name="only-here")(only_here)

    with pytest.raises(errors.FunctionNotFound, match="worker-0 has no function 'only-here'"):
        gm.rpc_sync("worker-0", only_here)
    rref = gm.remote("worker-0", only_here)
    assert rref._used is not None
    eventually(rref._used.confirmed.done)
    with pytest.raises(errors.RefNotFound, match="creation failed") as info:
        rref.to_here()
    assert isinstance(info.value.__cause__, errors.FunctionNotFound)


def test_function_not_registered_here() -> None:
    with pytest.raises(errors.InvalidRequest, match="is not registered; decorate it"):
        gm.rpc_sync("worker-0", lambda: 1)


def test_op_with_invalid_args() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        gm.rpc_sync("worker-0", add, (1,))


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, 2**80, lambda: 1, gm.Future()], ids=lambda v: type(v).__name__
)
def test_values_that_cannot_be_sent_are_refused(value: Any) -> None:
    with pytest.raises(errors.InvalidRequest):
        gm.rpc_sync("worker-0", echo, (value,))
    assert gm.rpc.debug_info()["agent.client_active_calls"] == 0


def test_rref_py_pickle_not_supported() -> None:
    with pytest.raises(TypeError, match="can be sent in calls only"):
        pickle.dumps(gm.RRef(1))


def test_future_wait_twice() -> None:
    future = gm.rpc_async("worker-0", raise_value)

    for _ in range(2):
        with pytest.raises(ValueError, match="expected error"):
            future.wait()


def test_handle_send_exceptions(
    make_agent: Callable[..., Agent], address: str, eventually: Any
) -> None:
    victim = make_agent("victim")
    assert gm.rpc_sync("victim", add, (1, 1)) == 2
    victim.leave(0)

    with pytest.raises((errors.Unreachable, errors.WorkerNotFound)):
        gm.rpc_sync("victim", add, (1, 1), timeout_s=5)
    with pytest.raises(errors.WorkerNotFound, match="no worker 'victim'"):
        gm.rpc_sync("victim", add, (1, 1), timeout_s=5)


def test_deadlock() -> None:
    slow = gm.rpc_async("worker-0", sleep, (0.5,))

    assert gm.rpc_sync("worker-0", add, (1, 1)) == 2
    assert slow.wait() == 0.5
