from typing import Any

import pytest
from google.protobuf import descriptor_pool

from gradmesh.protos.coordinator.v1 import membership_pb2, status_pb2, table_pb2
from gradmesh.protos.errors import InvalidRequest, LimitExceeded
from gradmesh.protos.limits import MAX_TEXT_BYTES
from gradmesh.protos.texts import ADDRESSES, LABELS, REPORTS, check_texts


def test_listed_fields_exist_once() -> None:
    listed = [*ADDRESSES, *LABELS, *REPORTS]

    for path in listed:
        descriptor_pool.Default().FindFieldByName(f"gradmesh.{path}")
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize(
    "message",
    [
        membership_pb2.Member(name="ps-0", address="127.0.0.1:1"),
        membership_pb2.Member(),
        status_pb2.ReportResultRequest(figures={"AUC, held out": 1.0}, job="a/b"),
        status_pb2.Checkpoint(path="/tmp/a b\n", error="x\x1b" * (MAX_TEXT_BYTES // 2)),
    ],
)
def test_valid_texts_pass(message: Any) -> None:
    check_texts(message)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (membership_pb2.Member(name="a b"), "'a b' is not a name for a Member.name"),
        (membership_pb2.Member(address="a b:1"), "is not an address"),
        (
            membership_pb2.RegisterRequest(member=membership_pb2.Member(name="\x1b")),
            "is not a name",
        ),
        (table_pb2.TableSpec(optimizer=table_pb2.Recipe(name="[/x]")), "Recipe.name"),
        (status_pb2.ReportResultRequest(figures={"a\nb": 1.0}), "use printable characters"),
        (status_pb2.Checkpoint(error="x" * (MAX_TEXT_BYTES + 1)), "at most 4096 bytes are kept"),
    ],
)
def test_other_texts_are_refused(message: Any, problem: str) -> None:
    with pytest.raises((InvalidRequest, LimitExceeded), match=problem.replace("[", "\\[")):
        check_texts(message)
