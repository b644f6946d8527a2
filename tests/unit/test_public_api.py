"""The public API of `import gradmesh as gm`."""

import inspect
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.cli import api_reference


def test_every_public_name_loads() -> None:
    assert [name for name in gm.__all__ if not hasattr(gm, name)] == []
    assert sorted(gm.__all__) == sorted(set(gm.__all__))


def test_tensors_are_made_joined_and_chosen() -> None:
    gm.manual_seed(7)
    x = gm.randn(2, 3, requires_grad=True)
    joined = gm.ops.cat([x, gm.zeros(1, 3)])
    gm.ops.where(joined > 0, joined, gm.ops.zeros_like(joined)).sum().backward()

    assert joined.shape == (3, 3)
    assert joined.dtype == gm.float32
    np.testing.assert_array_equal(x.grad.numpy(), (x.detach().numpy() > 0).astype(np.float32))


def test_a_seed_repeats_the_draws() -> None:
    first = [gm.manual_seed(3) and gm.rand(4).tolist() for _ in range(2)]

    assert first[0] == first[1]


@pytest.mark.parametrize("turn", [bool, float, int])
def test_a_tensor_of_several_elements_is_not_a_number(turn: type) -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\) is not one number: reduce it first"):
        turn(gm.ones(3))


def test_torch_has_the_same_names() -> None:
    torch = pytest.importorskip("torch")
    ours = {"masked_fill", "Tensor"}  # in torch the first is only a method

    basics = [
        name
        for name in gm.__all__
        if getattr(getattr(gm, name), "__module__", "").startswith("gradmesh.engine")
    ]
    assert [n for n in (*basics, *gm.ops.__all__) if not hasattr(torch, n) and n not in ours] == []


def test_import_does_not_load_a_maths_library() -> None:
    code = "import sys, gradmesh; print('numpy' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )

    assert ran.stdout == "False\n"


def subclasses(cls: type) -> set[type]:
    return {leaf for child in cls.__subclasses__() for leaf in (child, *subclasses(child))}


def test_errors_are_one_tree() -> None:
    public = [getattr(gm.errors, name) for name in gm.errors.__all__ if name != "Retry"]

    assert [e for e in public if not issubclass(e, gm.errors.GradmeshError)] == []


def test_every_error_is_public_but_those_of_the_command_line_and_of_servers() -> None:
    private = ("gradmesh.launch.docker", "gradmesh.launch.kubernetes", "gradmesh.services", "tests")
    raised = subclasses(gm.errors.GradmeshError)

    hidden = [
        error
        for error in raised
        if getattr(gm.errors, error.__name__, None) is not error
        and not error.__module__.startswith(private)
    ]
    assert hidden == []


def test_the_page_of_the_public_api_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "api.md"

    assert page.read_text() == api_reference.page(), (
        "run: python -m gradmesh.cli.api_reference docs/api.md"
    )


def test_every_public_name_has_a_line() -> None:
    rows = [line for line in api_reference.page().splitlines() if line.startswith("| `")]

    assert [row for row in rows if row.endswith("|  |")] == []


def public_callables() -> Iterator[tuple[str, Any]]:
    """Yield each public function, and the public methods of the classes that users call."""
    for module_name in api_reference.MODULES:
        module = api_reference.resolve(module_name)
        for name in api_reference.public_names(module):
            value = getattr(module, name)
            full = f"{module_name}.{name}"
            if inspect.isfunction(value):
                yield full, value
            elif inspect.isclass(value) and full in api_reference.METHODS:
                chosen = api_reference.METHODS[full]
                yield from (
                    (f"{full}.{method}", found)
                    for method, found in inspect.getmembers(value, inspect.isfunction)
                    if not method.startswith("_") and (not chosen or method in chosen)
                )


def test_no_protobuf_type_is_in_a_public_signature() -> None:
    found = {
        name: hints
        for name, value in public_callables()
        if "_pb2" in (hints := str(inspect.signature(value)))
    }

    assert found == {}


# A parameter of another name, or one without which nothing is waited for.
REQUIRED_TIMEOUTS = {"gm.rpc.set_timeout"}


def test_every_public_timeout_defaults_to_none() -> None:
    parameters = {
        name: inspect.signature(value).parameters.get("timeout_s")
        for name, value in public_callables()
        if name not in REQUIRED_TIMEOUTS
    }
    waits = {name: one for name, one in parameters.items() if one is not None}

    assert len(waits) > 20
    assert [name for name, one in waits.items() if one.default is not None] == []


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, "1", True], ids=str)
def test_a_timeout_is_a_number_above_zero(timeout_s: Any) -> None:
    future: gm.Future[int] = gm.Future()

    with pytest.raises(gm.errors.InvalidRequest, match="timeout_s must be a number of seconds"):
        future.result(timeout_s=timeout_s)
    with pytest.raises(gm.errors.InvalidRequest, match="timeout_s must be a number of seconds"):
        gm.futures.wait_all([future], timeout_s=timeout_s)
    with pytest.raises(gm.errors.InvalidRequest, match="join_s must be a number of seconds"):
        gm.Timeouts(join_s=timeout_s)


def test_a_completed_future_checks_its_timeout_too() -> None:
    future: gm.Future[int] = gm.Future()
    future.set_result(7)

    with pytest.raises(gm.errors.InvalidRequest, match="timeout_s"):
        future.result(timeout_s=0)


def test_infinity_waits_for_ever() -> None:
    future: gm.Future[int] = gm.Future()
    threading.Timer(0.05, future.set_result, (7,)).start()

    assert future.result(timeout_s=math.inf) == 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gm.Timeouts(call_s=None), "call_s must be a number of seconds, not None"),
        (lambda: gm.RetryPolicy(first_s=0), "first_s must be a number of seconds above 0"),
        (lambda: gm.RetryPolicy(max_s=math.inf), "max_s must be finite, not"),
        (lambda: gm.RetryPolicy(factor=0.5), "factor must be 1 or more, not 0.5"),
        (lambda: gm.RetryPolicy(jitter=2), "jitter must be from 0 to 1, not 2"),
        (lambda: gm.Limits(threads=0), "threads must be a whole number above 0, not 0"),
        (lambda: gm.Limits(max_frame_bytes=1), "max_frame_bytes must be from 4096 to"),
    ],
)
def test_value_objects_refuse_nonsense(make: Callable[[], object], message: str) -> None:
    with pytest.raises(gm.errors.InvalidRequest, match=message):
        make()
