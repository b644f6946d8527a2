import pytest

from gradmesh.sdk.process.config import load
from gradmesh.sdk.process.setting import ConfigError
from gradmesh.trainer.data import ClickSpec, Fields
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.spec import (
    JOB_SECTIONS,
    JobSpec,
    Rates,
    dense_rate,
    job_spec_of,
    rates_of,
    steps_of,
)


def loaded(tmp_path, text, **environment):
    file = tmp_path / "job.toml"
    file.write_text(text)
    return job_spec_of(load(JOB_SECTIONS, file=file, environment=environment))


def test_defaults_describe_the_default_clicks():
    spec = ClickSpec()

    assert JobSpec().source().fields == Fields(spec.dense_features, spec.rows)


@pytest.mark.parametrize(
    ("shape", "rates"),
    [
        ("linear", [1.0, 0.75, 0.5]),
        ("cosine", [1.0, 0.75, 0.5]),
        ("constant", [1.0, 1.0, 1.0]),
    ],
)
def test_learning_rate_falls_as_the_schedule_says(shape, rates):
    config = JobConfig(learning_rate=1.0, final_learning_rate=0.5, schedule=shape)

    found = [dense_rate(config, rates_of(config), step, 10) for step in (0, 5, 10)]

    assert found == pytest.approx(rates)


def test_learning_rate_rises_first():
    config = JobConfig(learning_rate=1.0, final_learning_rate=1.0, warmup_steps=4)

    found = [dense_rate(config, rates_of(config), step, 10) for step in range(6)]

    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_settings_come_from_file_and_environment(tmp_path):
    text = (
        '[data]\nformat = "criteo"\ntrain = ["day_*"]\n[model]\nname = "dcnv2"\n[job]\nepochs = 2'
    )

    found = loaded(tmp_path, text, GRADMESH_DATA_ROWS="100,50", GRADMESH_JOB_STEPS="7")

    assert (found.data.rows, found.job.steps) == ((100, 50), 7)
    assert (found.model.name, found.job.epochs) == ("dcnv2", 2)
    assert found.data.train == (tmp_path / "day_*",)
    assert JobSpec.from_dict(found.as_dict()) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data]\nrows = [0]", r"data.rows: expected at least 1"),
        ("[job]\nsteps = 0", r"job.steps: expected at least 1"),
        ('[job]\nbatch_size = "many"', r"job.batch_size: expected a whole number"),
        ("[job]\nlearning_rate = -1", r"job.learning_rate"),
        (
            "[job]\nlearning_rate = 1\nfinal_learning_rate = 2",
            r"job.final_learning_rate: must not exceed",
        ),
        ("[job]\npatience = 2", r"job.patience: needs eval_every"),
        (
            '[job]\nstaleness = 2\ncheckpoint_path = "a"',
            r"job.staleness: must be 0 with checkpoint_path",
        ),
        ("[job]\ntable_final_learning_rate = 2", r"job.table_final_learning_rate: needs"),
        ('[job]\noptimizer = "sdg"', r"expected one of sgd, adagrad, adam, got 'sdg'; did you"),
        ('[job]\nwire_rows = "int4"', r"job.wire_rows: expected one of float32, float16, bfloat16"),
        ("[job]\nstepps = 1", r"job.stepps: unknown setting; did you mean 'steps'"),
        ("[model]\nrow_bound = 0", r"model.row_bound: must be positive"),
        ('[model]\nname = "dlmr"', r"model.name: expected one of dlrm, dcnv2"),
        ('[data]\nformat = "criteo"', r"data.train: must name files of format criteo"),
        ('[data]\nformat = "cirteo"', r"expected one of generated, criteo.*did you mean 'criteo'"),
        ('[data]\ntrain = ["a"]', r"data.format: is generated, which reads no files"),
        ('[data]\nformat = "text"\ntrain = ["a"]', r"data.columns: must say what each column"),
        (
            '[data]\nformat = "text"\ntrain = ["a"]\ncolumns = ["labl"]',
            r"data.columns: expected skip, label, dense, hex, category, got 'labl'",
        ),
        ('[data]\nids = "vocabulary"', r"data.vocabulary: must name a file"),
        ("[data]\nmulti_hot = true", r"data.multi_hot: is for generated data of shape criteo"),
        ('[data]\nshape = "criteo"\nrows = [5]', r"data.rows: follow from scale"),
    ],
)
def test_wrong_setting_is_named_with_what_is_allowed(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, text)


def test_steps_of_an_epoch_cover_all_samples():
    by_epochs = JobConfig(epochs=2, batch_size=10)

    assert steps_of(JobConfig(steps=7), 100, 2) == 7
    assert steps_of(by_epochs, 101, 1) == 21
    assert steps_of(by_epochs, 101, 2) == 11
    assert steps_of(JobConfig(epochs=0.5, steps=100), None, 2) == 50


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("", Rates(0.004, 0.0001, 0.05)),
        ('[job]\noptimizer = "sgd"\ntable_optimizer = "adam"', Rates(1.0, 0.025, 0.002)),
        ('[job]\ntable_optimizer = "sgd"', Rates(0.004, 0.0001, 10.0)),
        ("[job]\nlearning_rate = 2\ntable_learning_rate = 0", Rates(2.0, 0.05, 0.0)),
    ],
)
def test_open_rates_suit_the_optimizer(tmp_path, text, rates):
    found = loaded(tmp_path, text)

    assert found.rates == rates
    assert found.as_dict()["job"]["learning_rate"] == rates.first
    assert found.as_dict()["job"]["table_learning_rate"] == rates.tables
    assert JobSpec.from_dict(found.as_dict()) == found
