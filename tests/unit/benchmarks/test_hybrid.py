import numpy as np
import pytest

from gradmesh.benchmarks.hybrid_epochs import table
from gradmesh.benchmarks.hybrid_shape import Shape, seed_shape, shapes


def test_seed_batches_are_as_the_original_draws_them():
    shape = seed_shape("seed", 8, 8, 300, 64)
    loads = [shape.load(0, variant) for variant in range(300)]

    assert shape.sizes == (512, 256, 128, 64, 32, 8)
    assert (shape.tables, shape.width) == (8, 512)
    assert {load.ids.size for load in loads} == set(range(20, 51))
    steps = np.concatenate([np.diff(load.offsets) for load in loads])
    assert (steps.min(), steps.max()) == (1, 10)
    assert all(load.offsets[-1] < load.ids.size for load in loads)
    assert np.mean([load.samples for load in loads]) == pytest.approx(7.0, abs=0.3)
    assert all(load.targets.size == load.samples for load in loads)


@pytest.mark.parametrize(("servers", "dim", "inputs"), [(1, 64, 512), (3, 7, 518), (16, 64, 512)])
def test_every_size_can_be_trained(servers, dim, inputs):
    shape = seed_shape("any", 2, servers, 10, dim)
    load = shape.load(0, 0)

    assert shape.inputs == inputs
    assert load.samples * shape.width == load.targets.size * shape.inputs
    assert Shape.from_dict(shape.as_dict()) == shape


def test_realistic_shape_is_as_wide_as_it_should_be():
    shape = shapes(1000)["realistic-b2048"]
    load = shape.load(1, 2)

    assert shape.sizes == (1677, 512, 256, 1)
    assert load.ids.shape == (2048, 26)
    assert load.ids.max() < 1000
    assert not np.array_equal(load.ids, shape.load(0, 2).ids)


def test_table_has_true_rates():
    epochs = np.array([[[0.1, 70.0], [0.3, 70.0]], [[0.2, 30.0], [0.2, 30.0]]])

    lines = table({"gradmesh": epochs, "torch": epochs * [2, 1]}, seed_shape("seed", 2, 1, 9, 64))

    rows = [line for line in lines.splitlines() if ":" in line]
    assert "p50:   0.200       350/s" in rows[0]
    assert "p50:   0.200       500/s" in rows[2]
    assert lines.endswith("ratio of the medians: 2.00")
