import pytest

from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.node.start import init
from gradmesh.sdk.process.config import load
from gradmesh.sdk.process.setting import ConfigError
from gradmesh.services.config import ParameterServerConfig, WorkerConfig
from gradmesh.trainer.config import TrainerConfig

ROLES = (ParameterServerConfig, TrainerConfig, WorkerConfig)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("listen", ["0.0.0.0:7000", "[::]:7000"])
def test_listening_everywhere_needs_an_address_for_others(role, listen):
    with pytest.raises(ConfigError, match=rf"{role.section}\.advertise"):
        load([role], flags={f"{role.section}.listen": listen})


@pytest.mark.parametrize("role", ROLES)
def test_an_advertised_address_makes_listening_everywhere_fine(role):
    flags = {
        f"{role.section}.listen": "0.0.0.0:7000",
        f"{role.section}.advertise": "node-0.example:7000",
    }

    config = load([role], flags=flags)[role]

    assert config.advertise == "node-0.example:7000"


@pytest.mark.parametrize("role", ROLES)
def test_a_listen_address_of_one_interface_is_advertised(role):
    assert load([role], flags={f"{role.section}.listen": "10.0.0.1:7000"})[role].advertise is None


def test_a_worker_of_a_program_needs_it_too():
    with pytest.raises(InvalidRequest, match="advertise must name a reachable address"):
        init("w", coordinator="127.0.0.1:1", listen="0.0.0.0:0")
