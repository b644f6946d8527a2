import os
from pathlib import Path

import pytest

from gradmesh.sdk.process.address import is_loopback, join, reachable, split, write_address


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("localhost:1", "localhost", 1),
        ("[::1]:70", "::1", 70),
        ("ps-0.ps.svc:65535", "ps-0.ps.svc", 65535),
    ],
)
def test_split_and_join_are_inverse(address: str, host: str, port: int) -> None:
    assert split(address) == (host, port)
    assert join(host, port) == address


@pytest.mark.parametrize(
    "address", ["", ":1", "h", "h:", "h:x", "h:65536", "::1:5", "a b:1", "http://h:1"]
)
def test_split_refuses_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        split(address)


def test_port_zero_cannot_be_called() -> None:
    with pytest.raises(ValueError, match="port that the other side listens on"):
        reachable("localhost:0")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("h:1", False),
    ],
)
def test_loopback_is_recognised(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


def test_address_file_appears_whole(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.address"

    write_address(file, "127.0.0.1:7")
    write_address(None, "127.0.0.1:8")

    assert file.read_text() == "127.0.0.1:7\n"
    assert os.listdir(tmp_path) == ["coordinator.address"]
