"""What the fuzzer generates: valid requests, mutations that repeat, budgets, reports."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest

from gradmesh.protos.lane import HEADER
from gradmesh.protos.method import from_wire
from tests.fuzz.__main__ import budgets, chosen
from tests.fuzz.batch import Batch, Finding
from tests.fuzz.hostile_json import change_json
from tests.fuzz.lane_frames import LaneFrameMaker
from tests.fuzz.mutation import mutate
from tests.fuzz.report import FuzzReport
from tests.fuzz.rpc_frames import RPCS, FrameMaker
from tests.fuzz.words import Words

METHODS = [method for methods in RPCS.values() for method in methods]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_requests_of_every_rpc_are_valid_before_they_are_mutated(method) -> None:
    maker = FrameMaker(random.Random(1), Words())

    made = {maker.make(method).encoded() for _ in range(30)}

    for data in made:
        from_wire(data, method.request_type, 1 << 20)
    assert len(made) > 1 or not method.request_type.DESCRIPTOR.fields


def test_a_seed_makes_the_same_frames() -> None:
    def frames(seed: int) -> list[bytes]:
        maker = FrameMaker(random.Random(seed), Words())
        lanes = LaneFrameMaker(maker)
        return [maker.bytes_of(method) for method in METHODS] + [
            lanes.make().inline for _ in range(50)
        ]

    assert frames(5) == frames(5)
    assert frames(5) != frames(6)


def test_whole_lane_frames_have_the_sizes_of_their_header() -> None:
    maker = LaneFrameMaker(FrameMaker(random.Random(2), Words()))

    for frame in (maker.make() for _ in range(500)):
        header = frame.header
        sizes = (header.head_bytes, header.table_bytes, header.body_bytes)
        is_right = sizes == (len(frame.head), len(frame.table), len(frame.body))
        assert is_right or not frame.is_whole
        assert len(frame.prefix) == HEADER.size + len(frame.table) + len(frame.head)


def test_mutations_differ_and_stay_small() -> None:
    chance = random.Random(3)
    data = bytes(range(200))

    made = [mutate(chance, data, b"other") for _ in range(300)]

    assert sum(one != data for one in made) > 290
    assert max(map(len, made)) < 2000
    assert isinstance(mutate(chance, b""), bytes)


def test_hostile_documents_leave_the_original_alone() -> None:
    document = {"a": [1, {"b": "text"}], "c": None}
    changed = [change_json(random.Random(seed), document) for seed in range(50)]

    assert document == {"a": [1, {"b": "text"}], "c": None}
    assert any(one != document for one in changed)


def test_frames_are_divided_among_targets_and_seeds_are_for_each() -> None:
    found = budgets({"FUZZ_FRAMES": "100000"}, ["tcp", "log"])

    assert found["tcp"].last is not None
    assert found["log"].last is not None
    assert found["tcp"].last - found["tcp"].first + 1 == 90
    assert budgets({"FUZZ_SEEDS": "5..6"}, ["tcp"])["tcp"].last == 6
    assert budgets({"FUZZ_SECONDS": "10"}, ["tcp", "log"])["log"].seconds == 10
    with pytest.raises(ValueError, match="FUZZ_FRAMES"):
        budgets({"FUZZ_FRAMES": "many"}, ["tcp"])


def test_targets_are_chosen_by_name() -> None:
    assert chosen({"FUZZ_TARGETS": "tcp,log"}) == ["tcp", "log"]
    assert len(chosen({})) == 10
    with pytest.raises(ValueError, match="'udp'; there are grpc"):
        chosen({"FUZZ_TARGETS": "udp"})


def test_a_finding_is_printed_once_with_its_bytes_and_how_to_repeat_it(tmp_path: Path) -> None:
    text = io.StringIO()
    report = FuzzReport(tmp_path / "findings", text)
    for seed in (7, 8):
        batch = Batch(10, findings=[Finding(f"case {seed}: it broke", b"hostile")])
        report.add("tcp", seed, batch, 1.0)

    assert report.summarize() == 1
    assert report.findings("tcp") == 2
    assert text.getvalue().count("it broke") == 2  # the finding and the summary
    assert "FUZZ_TARGETS=tcp FUZZ_SEEDS=7 make fuzz" in text.getvalue()
    assert (tmp_path / "findings" / "tcp-7-0.bin").read_bytes() == b"hostile"
    assert FuzzReport(tmp_path, io.StringIO()).summarize() == 0
