"""A model takes no more memory than the file of its parameters."""

import pytest

from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import MLP, Module
from gradmesh.trainer.data import Fields
from gradmesh.trainer.errors import DataError
from gradmesh.trainer.models import ModelConfig, build_model
from gradmesh.trainer.models.budget import BudgetGenerator


def test_values_are_those_of_the_plain_generator() -> None:
    plain, bounded = MLP((3, 4, 1), generator=Generator(7)), None
    bounded = MLP((3, 4, 1), generator=BudgetGenerator(7, 3 * 4 + 4 + 4 + 1))

    for name, tensor in plain.state_dict().items():
        assert tensor.data.tobytes() == bounded.state_dict()[name].data.tobytes()
    with pytest.raises(DataError, match="more parameters than its file"):
        MLP((3, 4, 1), generator=BudgetGenerator(7, 3 * 4 + 4 + 4))


@pytest.mark.parametrize("name", ["dlrm", "dcnv2", "wide-deep", "deepfm", "two-tower"])
def test_a_model_of_any_width_is_refused_before_it_takes_memory(name: str) -> None:
    config = ModelConfig(name=name, top=(1 << 20, 1 << 14), bottom=(1 << 24,))

    with pytest.raises(DataError, match="more parameters"):
        build_model(config, Fields(4, (10, 10)), Module(), BudgetGenerator(0, 1000))
