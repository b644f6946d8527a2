"""Indexing: torch's rule for integers beside tensors, in values, gradients and assignments."""

from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd

# x is [2, 3, 4], i and j are indices [2], b a mask [3], q a mask [2, 3], g an index [2, 2].
INDICES = """
0, :, i | :, 0, i | i, :, i | 0, i, : | i, None, 0 | None, 0, :, i | i, 0, : | 0, :, [0, 1]
k, :, i | i, :, k | 0, ..., i | i, ..., 0 | :, i, ..., j | i, ..., j | ..., 0, i | ..., None, i
i, 0, None, j | i, None, j, : | 0, :, g | g, :, 0 | :, g, 0 | k, k, k | k | -1, :, i | i, 0, j
True | None, True | False | 0, True | :, b | 0, b | 0, :, c | b, | q | q, 0 | q, i | :, b, 0
i | i, j | i, :, j | i, 1:, j | i[:0] | [] | 0, :, [] | g | (0, 1), | :, (0, 1) | range(2)
1:, :, i | ..., i | i, 0:1, 2 | 0, 1, i | i, 1, 2 | 0, i, 2 | [0, 1], :, [0, 1] | i - 2 | 5 | i + 5
0, 0, 0, 0 | i, 0, 0, 0 | 0.5 | f | u | :, :, 4 | 1:2, None, k, ::2 | ... | None
i, ..., None | :0, :, i
"""


def lines() -> list[str]:
    return [
        part.strip() for line in INDICES.splitlines() for part in line.split("|") if part.strip()
    ]


def parts(text: str, make: Any) -> Any:
    scope = {
        "i": make(np.array([0, 1])),
        "j": make(np.array([1, 0])),
        "k": make(np.array(1)),
        "g": make(np.array([[0, 1], [1, 1]])),
        "b": make(np.array([True, False, True])),
        "c": make(np.array([True, False, True, False])),
        "q": make(np.array([[True, False, True], [False, False, True]])),
        "f": make(np.array([0.5])),
        "u": make(np.array([0, 1], np.uint8)),
    }

    class Index:
        def __getitem__(self, index: Any) -> Any:
            return index

    return eval(f"Index()[{text}]", {"Index": Index, **scope})


def same(call: Any, other: Any) -> tuple[Any, Any] | None:
    """Return both results, or None if both are refused."""
    try:
        expected = other()
    except (IndexError, RuntimeError, TypeError):
        with pytest.raises((IndexError, ValueError)):
            call()
        return None
    return call(), expected


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("text", [t for t in lines() if t != "u"])
def test_an_index_reads_and_differentiates_as_in_torch(text: str) -> None:
    torch = pytest.importorskip("torch")
    data = np.arange(24.0).reshape(2, 3, 4)
    x = autograd.tensor(data, requires_grad=True)
    y = torch.tensor(data, requires_grad=True)

    found = same(lambda: x[parts(text, autograd.tensor)], lambda: y[parts(text, torch.from_numpy)])
    if found is None:
        return
    a, b = found
    seed = np.arange(1.0, a.numel() + 1).reshape(a.shape)
    a.backward(seed)
    b.backward(torch.tensor(seed))

    assert a.tolist() == b.tolist()
    assert tuple(a.shape) == tuple(b.shape)
    assert x.grad.tolist() == y.grad.tolist()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("text", [t for t in lines() if t not in ("u", "i, ..., i", "k, k, k")])
def test_an_index_writes_as_in_torch(text: str, recorded: bool) -> None:
    torch = pytest.importorskip("torch")
    data = np.arange(24.0).reshape(2, 3, 4)
    x, y = autograd.tensor(data), torch.tensor(data)
    try:
        shape = tuple(y[parts(text, torch.from_numpy)].shape)
    except (IndexError, TypeError):
        with pytest.raises((IndexError, ValueError)):
            x[parts(text, autograd.tensor)] = 1.0
        assert x.tolist() == data.tolist()
        return
    given = -np.arange(1.0, np.prod(shape) + 1).reshape(shape)
    v = autograd.tensor(given, requires_grad=recorded)
    w = torch.tensor(given, requires_grad=recorded)

    x[parts(text, autograd.tensor)] = v
    y[parts(text, torch.from_numpy)] = w

    assert x.tolist() == y.tolist()
    if y.requires_grad:
        x.backward(data)
        y.backward(torch.tensor(data))
        assert v.grad.tolist() == w.grad.tolist()


@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 1, 3), (1,), (1, 1), ()])
def test_a_value_may_have_more_axes_of_length_1_than_its_place(shape: tuple[int, ...]) -> None:
    x = autograd.zeros(2, 3)
    value = autograd.ones(*shape).requires_grad_()

    x[0] = value
    x.sum().backward()

    assert x.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert value.grad.shape == shape
    assert value.grad.sum().item() == 3


def test_a_single_element_is_written() -> None:
    x = autograd.tensor([1.0, 2.0])

    x[0, True] = 5.0
    x[1, False] = 7.0

    assert x.tolist() == [5, 2]


def test_a_number_is_written_where_an_index_points() -> None:
    x = autograd.zeros(2, 3, 4)

    x[0, :, autograd.tensor([1, 3])] = 1.0

    assert x[0, :, [1, 3]].tolist() == [[1, 1]] * 3
    assert x.sum().item() == 6


def test_an_index_of_bytes_is_refused() -> None:
    x = autograd.zeros(2, 3)

    with pytest.raises(IndexError, match="uint8"):
        x[autograd.tensor(np.array([0, 1], np.uint8))]
