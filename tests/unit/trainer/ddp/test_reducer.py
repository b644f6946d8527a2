import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradmesh.engine.nn import Parameter
from gradmesh.trainer.ddp import Reducer
from gradmesh.trainer.errors import CollectiveMismatch, MissingGradient, PeerLost
from gradmesh.trainer.process_group import LocalProcessGroup, TcpProcessGroup

SHAPES = {"weight": (3, 5), "bias": (3,), "scale": ()}


class MemoryStore:
    def __init__(self):
        self._values = {}
        self._changed = threading.Condition()

    def set(self, key, value):
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key, timeout_s):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TimeoutError(key)
            return self._values[key]


@pytest.fixture
def on_ranks():
    """Run a function on every rank of a fresh tcp group; return the outcomes."""

    def run(size, job):
        store = MemoryStore()

        def one(rank):
            with TcpProcessGroup.connect(
                store, generation=1, rank=rank, world_size=size, timeout_s=10
            ) as group:
                try:
                    return job(group)
                except Exception as error:
                    return error

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(one, range(size), timeout=30))

    return run


def parameters(rank, shapes=SHAPES):
    rng = np.random.default_rng(rank)
    return {n: Parameter(rng.standard_normal(s).astype("f4")) for n, s in shapes.items()}


def gradients_of(rank, held):
    rng = np.random.default_rng(100 + rank)
    return {p: rng.standard_normal(p.shape).astype("f4") for p in held.values()}


def test_construction_copies_the_parameters_of_rank_0(on_ranks):
    def build(group):
        held = parameters(group.rank)
        Reducer(group, held.items())
        return {name: p.data.tobytes() for name, p in held.items()}

    results = on_ranks(3, build)

    expected = {name: p.data.tobytes() for name, p in parameters(0).items()}
    assert results == [expected] * 3


@pytest.mark.parametrize("bucket_bytes", [None, 1, 70])
def test_gradients_become_their_average_in_rank_order(on_ranks, bucket_bytes):
    def reduce(group):
        held = parameters(group.rank)
        reducer = Reducer(group, held.items(), bucket_bytes)
        for _ in range(2):
            gradients = gradients_of(group.rank, held)
            reducer.reduce(gradients)
        return {name: gradients[p].tobytes() for name, p in held.items()}

    results = on_ranks(3, reduce)

    expected = {}
    for name in SHAPES:
        parts = []
        for rank in range(3):
            held = parameters(rank)
            parts.append(gradients_of(rank, held)[held[name]])
        expected[name] = (((parts[0] + parts[1]) + parts[2]) / np.float32(3)).tobytes()
    assert results == [expected] * 3


def test_one_rank_keeps_its_gradients_and_foreign_keys():
    held = parameters(0)
    gradients = gradients_of(0, held)
    expected = {p: grad.copy() for p, grad in gradients.items()}
    gradients["a row of a table"] = "left alone"

    Reducer(LocalProcessGroup(), held.items()).reduce(gradients)

    assert gradients.pop("a row of a table") == "left alone"
    assert gradients.keys() == expected.keys()
    for parameter, grad in gradients.items():
        np.testing.assert_array_equal(grad, expected[parameter])


def test_missing_gradient_is_named_and_changes_nothing():
    held = parameters(0)
    reducer = Reducer(LocalProcessGroup(), held.items())
    gradients = gradients_of(0, held)
    del gradients[held["bias"]]
    before = dict(gradients)

    with pytest.raises(MissingGradient, match="rank 0: bias"):
        reducer.reduce(gradients)

    assert gradients == before


@pytest.mark.parametrize(
    "shapes", [{"weight": (5, 3), "bias": (3,), "scale": ()}, {"weight": (3, 5)}, {}]
)
def test_ranks_with_other_parameters_all_raise(on_ranks, shapes):
    def build(group):
        held = parameters(group.rank, SHAPES if group.rank else shapes)
        Reducer(group, held.items())

    errors = on_ranks(2, build)

    assert [type(error) for error in errors] == [CollectiveMismatch] * 2
    assert "rank 1 has others" in str(errors[0])


def test_lost_rank_ends_the_reduction_of_the_others(on_ranks):
    def reduce(group):
        held = parameters(group.rank)
        reducer = Reducer(group, held.items())
        if group.rank == 0:
            return None
        reducer.reduce(gradients_of(group.rank, held))

    errors = on_ranks(3, reduce)

    assert errors[0] is None
    assert [type(error) for error in errors[1:]] == [PeerLost] * 2
