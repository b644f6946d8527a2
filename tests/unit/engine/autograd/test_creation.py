import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine.backend import DtypeError, Generator


def test_filled_tensors() -> None:
    assert ag.zeros(2, 3).shape == ag.zeros((2, 3)).shape == (2, 3)
    assert ag.full((2,), 1.5).tolist() == [1.5, 1.5]
    assert ag.full((1,), 2).dtype == np.int64
    assert ag.empty(0, 4).shape == (0, 4)
    assert ag.ones(1, dtype="bool").tolist() == [True]


def test_ranges() -> None:
    assert ag.arange(3).tolist() == [0, 1, 2]
    assert ag.arange(1, 2, 0.5).tolist() == [1.0, 1.5]
    assert ag.arange(2.0).dtype == np.float32


def test_like_another() -> None:
    other = ag.ones(2, dtype="float64")

    assert ag.zeros_like(other).tolist() == [0.0, 0.0]
    assert ag.ones_like(other).dtype == np.float64


def test_as_tensor_shares_where_it_can() -> None:
    array = np.zeros(2, np.float32)
    x = ag.tensor([1.0])

    assert ag.as_tensor(x) is x
    assert np.shares_memory(ag.as_tensor(array).data, array)
    assert ag.as_tensor([1, 2], dtype="float32").tolist() == [1.0, 2.0]
    assert ag.as_tensor(x, dtype="float64").dtype == np.float64


def test_random_numbers_come_from_their_generator() -> None:
    for draw in (
        lambda g: ag.rand(4, generator=g),
        lambda g: ag.randn(4, generator=g),
        lambda g: ag.randint(0, 9, (4,), generator=g),
    ):
        assert draw(Generator(1)).tolist() == draw(Generator(1)).tolist()
        assert draw(Generator(1)).tolist() != draw(Generator(2)).tolist()


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(DtypeError, match="complex"):
        ag.from_numpy(np.zeros(1, np.complex64))
    with pytest.raises(DtypeError):
        ag.tensor(["text"])


def test_a_numpy_scalar_is_a_tensor_without_axes() -> None:
    for made in (ag.tensor(np.float64(3.0)), ag.as_tensor(np.float64(3.0))):
        assert (made * 2).item() == 6
        assert made.shape == ()
        assert made.dtype == np.float64
    assert ag.from_numpy(np.int32(3)).tolist() == 3
