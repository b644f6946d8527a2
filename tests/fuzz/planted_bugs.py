"""Two defects for the tests of the fuzzer; a parameter server that imports this module has them."""

from __future__ import annotations

from typing import Any

from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.transport.call import Call
from gradmesh.services.parameter_server.servicer import ParameterServerServicer
from tests.fuzz.words import KEPT

_inspect_table = ParameterServerServicer.inspect_table
_end_snapshot = ParameterServerServicer.end_snapshot


def raise_on_a_byte(
    self: ParameterServerServicer, request: pb.InspectTableRequest, call: Call
) -> pb.InspectTableResponse:
    """Index with a byte of the request."""
    if "-" in request.table:
        (b"",)[ord("-")]
    return _inspect_table(self, request, call)


def change_rows(
    self: ParameterServerServicer, request: pb.EndSnapshotRequest, call: Call
) -> pb.EndSnapshotResponse:
    """Reset a table that the request does not name."""
    if request.snapshot == "fuzz-label":
        store: Any = self._store
        store.table(KEPT[0], call.deadline).reset()
    return _end_snapshot(self, request, call)


ParameterServerServicer.inspect_table = raise_on_a_byte  # type: ignore[method-assign]
ParameterServerServicer.end_snapshot = change_rows  # type: ignore[method-assign]
