import pytest

from gradmesh.sdk.process.config import load
from gradmesh.sdk.process.errors import ConfigError
from gradmesh.trainer.config import TrainerConfig


@pytest.mark.parametrize("listen", ["0.0.0.0:7000", "[::]:7000"])
def test_listening_everywhere_needs_an_address_to_tell(listen):
    with pytest.raises(ConfigError, match=r"trainer\.advertise"):
        load([TrainerConfig], environment={"GRADMESH_TRAINER_LISTEN": listen})


def test_advertised_address_makes_listening_everywhere_fine():
    environment = {
        "GRADMESH_TRAINER_LISTEN": "0.0.0.0:7000",
        "GRADMESH_TRAINER_ADVERTISE": "trainer-0.example:7000",
    }

    config = load([TrainerConfig], environment=environment)[TrainerConfig]

    assert config.advertise == "trainer-0.example:7000"
