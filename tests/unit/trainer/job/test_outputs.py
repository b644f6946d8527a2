"""What a job writes: history, event files, report."""

import json
import struct
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.nn import clip_grad_norm_
from gradmesh.engine.nn.module import Parameter
from gradmesh.trainer.job.dense import clipped
from gradmesh.trainer.job.evaluation import EarlyStopping
from gradmesh.trainer.job.metrics_log import (
    EventFile,
    MetricsLog,
    Throughput,
    crc32c,
    read_metrics_log,
)
from gradmesh.trainer.job.report import curve, write_report


def test_checksum_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283


def records(file):
    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield data[12 : 12 + length]
        data = data[16 + length :]


def test_event_file_holds_the_added_values(tmp_path):
    with EventFile(tmp_path) as events:
        events.add(300, {"train/loss": 0.5})

    (file,) = tmp_path.iterdir()
    head, event = records(file)
    assert b"brain.Event:2" in head
    assert b"\x10\xac\x02" in event  # field 2, step 300
    assert b"train/loss" + struct.pack("<Bf", 0x15, 0.5) in event


def test_history_resumes_from_its_step(tmp_path):
    first = MetricsLog(tmp_path, False, 0)
    for step in (10, 20, 30):
        first.add("train", step, {"loss": 1 / step})
    first.close()

    second = MetricsLog(tmp_path, True, 20)
    second.add("train", 30, {"loss": 7.0})
    second.close()

    lines = read_metrics_log(tmp_path)
    assert [(line["step"], line["loss"]) for line in lines] == [(10, 0.1), (20, 0.05), (30, 7.0)]
    assert lines == second.lines
    assert list((tmp_path / "tensorboard").iterdir())


def test_history_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    history = MetricsLog(None, True, 0)
    history.add("train", 1, {"loss": 1.0})
    history.close()

    assert len(history.lines) == 1
    assert list(tmp_path.iterdir()) == []


def test_line_on_its_way_is_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n{"kind": "tra')

    assert read_metrics_log(tmp_path) == [{"kind": "train", "step": 1}]
    assert read_metrics_log(tmp_path / "nowhere") == []


def test_report_has_figures_settings_and_curves(tmp_path):
    lines = [{"kind": "train", "step": s, "loss": 1 / s, "samples_per_s": 9.0} for s in (1, 2, 3)]
    lines += [{"kind": "validation", "step": 2, "auc": 0.7, "log_loss": 0.5}]

    write_report(tmp_path, {"job": {"output": "<b>"}}, {"auc": 0.75}, lines)

    report = json.loads((tmp_path / "report.json").read_text())
    assert report["figures"] == {"auc": 0.75}
    assert report["validation"][0]["auc"] == 0.7
    text = (tmp_path / "report.html").read_text()
    assert text.count("<svg") == 2
    assert "&lt;b&gt;" in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.json"]


@pytest.mark.parametrize("values", [[1.0, 1.0], [0.0, -5.0, 2.0]])
def test_curve_is_well_formed_and_stays_inside(values):
    drawing = ElementTree.fromstring(curve(list(enumerate(values))))

    points = drawing.find("polyline").get("points").split()
    places = np.array([[float(number) for number in point.split(",")] for point in points])
    assert len(places) == len(values)
    assert (places >= 0).all()
    assert (places <= [640, 240]).all()


def test_clipping_is_that_of_the_engine():
    rng = np.random.default_rng(0)
    leaves = [Parameter(Tensor(np.zeros(n, np.float32))) for n in (3, 5)]
    gradients = {leaf: rng.standard_normal(leaf.shape).astype(np.float32) for leaf in leaves}
    for leaf, grad in gradients.items():
        leaf.grad = Tensor(grad.copy())
    clip_grad_norm_(leaves, 0.5)

    found = clipped(gradients, 0.5)

    for leaf in leaves:
        np.testing.assert_allclose(found[leaf], leaf.grad.data, rtol=1e-6)
    assert clipped(gradients, 0)[leaves[0]] is gradients[leaves[0]]
    assert clipped(gradients, 1e9)[leaves[0]] is gradients[leaves[0]]


def test_early_stopping_ends_after_evaluations_without_gain():
    stopping, endless = EarlyStopping(2), EarlyStopping(0)

    answers = [stopping.should_stop(loss) for loss in (0.5, 0.6, 0.4, 0.4, 0.41)]

    assert answers == [False, False, False, False, True]
    assert not any(endless.should_stop(1.0) for _ in range(10))


@pytest.fixture
def clock():
    return iter([100.0, 105.0, 106.0, 108.0]).__next__


def test_rate_leaves_the_first_step_out(clock):
    meter = Throughput(10, clock=clock)

    for steps in (1, 2, 3):
        meter.count(steps)

    assert meter.samples_per_s() == pytest.approx(2 * 10 / 3.0)
    assert meter.seconds() == 8.0


def test_rate_is_zero_before_the_second_step(clock):
    meter = Throughput(10, clock=clock)

    assert meter.samples_per_s() == 0.0
    meter.count(1)
    assert meter.samples_per_s() == 0.0
