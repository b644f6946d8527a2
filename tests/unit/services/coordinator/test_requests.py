"""Checks before the coordinator's lock: what is refused, and at what size."""

import pytest

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import (
    data_pb2,
    membership_pb2,
    reshard_pb2,
    status_pb2,
    table_pb2,
)
from gradmesh.protos.errors import InvalidRequest, LimitExceeded
from gradmesh.protos.limits import MAX_VALUE_BYTES
from gradmesh.services.coordinator import requests


def test_a_value_has_limits(say):
    with pytest.raises(InvalidRequest, match="at most 65536"):
        requests.check_key(say.put(1, "key", b"x" * (MAX_VALUE_BYTES + 1)))
    with pytest.raises(InvalidRequest):
        requests.check_key(say.put(1, "no key!", b""))

    requests.check_key(say.put(1, "key", b"x" * MAX_VALUE_BYTES))


def test_a_renewal_names_openers_up_to_the_limit():
    request = membership_pb2.RenewLeaseRequest(name="ps-0", incarnation=1)
    for number in range(limits.MAX_OPENERS):
        request.context_openers.add(name="x" * limits.MAX_NAME_BYTES, incarnation=2**63 + number)
        request.context_counts.append(number)

    assert len(requests.openers_of(request)) == limits.MAX_OPENERS
    request.context_openers.add()
    with pytest.raises(LimitExceeded, match="1025 in one request, the limit is 1024"):
        requests.openers_of(request)


@pytest.mark.parametrize(
    ("check", "request_"),
    [
        (
            requests.check_register,
            membership_pb2.RegisterRequest(member=membership_pb2.Member(address="h" * 301)),
        ),
        (requests.check_register, membership_pb2.RegisterRequest(protocol="p" * 20_000)),
        (requests.openers_of, membership_pb2.RenewLeaseRequest(name="n" * 2**20)),
        (requests.openers_of, membership_pb2.RenewLeaseRequest(context_counts=[1] * 1025)),
        (requests.check_take, data_pb2.TakeShardRequest(dataset="t", done=range(1025))),
        (
            requests.position_of,
            data_pb2.SetDataPositionRequest(dataset="t", position=bytes(2**18)),
        ),
        (
            requests.check_result,
            status_pb2.ReportResultRequest(figures={f"f{i}": 1.0 for i in range(257)}),
        ),
        (
            requests.check_checkpoint,
            status_pb2.ReportCheckpointRequest(checkpoint=status_pb2.Checkpoint(error="e" * 5000)),
        ),
        (requests.check_move, reshard_pb2.ReportMoveRequest(error="e" * 5000)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_larger_requests_are_refused(check, request_):
    with pytest.raises(LimitExceeded, match=r"limit is|at most"):
        check(request_)


def test_fields_of_later_versions_count(say):
    spec = say.table()
    # Field 99 of wire type 2, which this version does not know, is stored with the others.
    unknown = b"\x9a\x06\xff\x7f" + bytes(16383)
    grown = table_pb2.TableSpec.FromString(spec.SerializeToString() + unknown)

    with pytest.raises(LimitExceeded, match="a specification of"):
        requests.check_table(table_pb2.CreateTableRequest(spec=grown))
    requests.check_table(table_pb2.CreateTableRequest(spec=spec))


def test_no_report_exhausts_the_numbers_of_requests():
    report = status_pb2.ReportCheckpointRequest(checkpoint=status_pb2.Checkpoint(request=2**64 - 1))

    with pytest.raises(InvalidRequest, match="never made"):
        requests.check_checkpoint(report)
