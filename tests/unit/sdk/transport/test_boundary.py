from typing import Any

import grpc
import pytest

from gradmesh.protos import errors
from gradmesh.sdk.transport.boundary import from_call, to_status


class FailedCall(grpc.RpcError):
    """As gRPC raises it: the error is also the call."""

    def __init__(self, code: grpc.StatusCode, details: str, *metadata: tuple[str, Any]) -> None:
        self._outcome = (code, details, metadata)

    def code(self) -> grpc.StatusCode:
        return self._outcome[0]

    def details(self) -> str:
        return self._outcome[1]

    def trailing_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self._outcome[2]


@pytest.mark.parametrize("code", [c for c in grpc.StatusCode if c is not grpc.StatusCode.OK])
def test_every_status_is_mapped_to_an_error(code: grpc.StatusCode) -> None:
    error = from_call(FailedCall(code, "text"), "ps-0 at here, Lookup")

    assert type(error) in errors.CATALOGUE.values()
    assert str(error).startswith("ps-0 at here, Lookup: text")


@pytest.mark.parametrize("cls", errors.CATALOGUE.values(), ids=lambda cls: cls.__name__)
def test_errors_return_from_their_status(cls: type[errors.MeshError]) -> None:
    status = to_status(cls("text", key="value"))

    error = from_call(FailedCall(status.code, status.details, *status.trailing_metadata), "here")

    assert status.code.name == cls.code
    assert type(error) is cls
    assert error.metadata == {"key": "value"}


@pytest.mark.parametrize("details", [b"\xff\xff", b"", b"\x08\x05\x12\x03abc"])
def test_malformed_error_details_are_ignored(details: bytes) -> None:
    call = FailedCall(grpc.StatusCode.INTERNAL, "text", ("grpc-status-details-bin", details))

    assert type(from_call(call, "here")) is errors.InternalError


def test_an_error_keeps_its_type_where_grpc_left_the_message_encoded() -> None:
    status = to_status(errors.TableNotFound("no table 'é'"))
    call = FailedCall(status.code, "no table '%C3%A9'", *status.trailing_metadata)

    error = from_call(call, "here")

    assert type(error) is errors.TableNotFound
    assert error.message.startswith("no table 'é'")
