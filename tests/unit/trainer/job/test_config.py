import pytest

from gradmesh.sdk.process.config import load
from gradmesh.sdk.process.errors import ConfigError
from gradmesh.trainer.data import ClickSpec
from gradmesh.trainer.job.config import JobConfig


def test_defaults_describe_the_default_clicks():
    assert JobConfig().clicks() == ClickSpec()


def test_learning_rate_falls_in_a_line():
    config = JobConfig(steps=10, learning_rate=1.0, final_learning_rate=0.5)

    rates = [config.learning_rate_at(step) for step in (0, 5, 10)]

    assert rates == [1.0, 0.75, 0.5]


def test_settings_come_from_the_environment():
    environment = {"GRADMESH_JOB_ROWS": "100,50", "GRADMESH_JOB_STEPS": "7"}

    config = load([JobConfig], environment=environment)[JobConfig]

    assert (config.rows, config.steps) == ((100, 50), 7)
    assert config.clicks().rows == (100, 50)


@pytest.mark.parametrize(
    ("variable", "value", "key"),
    [
        ("ROWS", "0", "job.rows"),
        ("STEPS", "0", "job.steps"),
        ("BATCH_SIZE", "many", "job.batch_size"),
        ("LEARNING_RATE", "-1", "job.learning_rate"),
        ("FINAL_LEARNING_RATE", "2", "job.final_learning_rate"),
        ("ROW_BOUND", "0", "job.row_bound"),
    ],
)
def test_bad_value_is_named(variable, value, key):
    with pytest.raises(ConfigError, match=key):
        load([JobConfig], environment={f"GRADMESH_JOB_{variable}": value})
