import os
from pathlib import Path
from typing import Any

import pytest

from gradmesh.sdk.process.config import load
from gradmesh.sdk.process.network import (
    SecurityConfig,
    is_loopback,
    join,
    reachable,
    split,
    write_address,
)
from gradmesh.sdk.process.setting import ConfigError


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("s3cret")
    return file


@pytest.mark.parametrize(
    ("keys", "missing"),
    [
        (["tls_certificate_file"], "tls_key_file"),
        (["tls_key_file"], "tls_certificate_file"),
    ],
)
def test_a_certificate_without_its_key_is_refused(
    secret: Path, keys: list[str], missing: str
) -> None:
    flags = {f"security.{key}": str(secret) for key in keys}

    with pytest.raises(ConfigError, match=f"security.{missing}: is missing"):
        load([SecurityConfig], flags=flags)


def test_client_certificates_need_an_authority() -> None:
    with pytest.raises(ConfigError, match=r"security\.tls_authority_file: is missing"):
        load([SecurityConfig], flags={"security.tls_require_client_certificate": True})


def test_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    flags = {"security.token_file": str(tmp_path / "none-such")}

    with pytest.raises(ConfigError, match=r"expected a readable file.*No such file"):
        load([SecurityConfig], flags=flags)


@pytest.mark.parametrize(
    ("address", "allowed", "safe"),
    [("127.0.0.1:1", False, True), ("0.0.0.0:1", False, False), ("0.0.0.0:1", True, True)],
)
def test_token_does_not_leave_the_machine_in_the_clear(
    secret: Path, address: str, allowed: bool, safe: bool
) -> None:
    config = SecurityConfig(token_file=secret, allow_plaintext_token=allowed)

    assert (list(config.problems_at("listen", address)) == []) is safe


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "some-host:1"])
@pytest.mark.parametrize(
    ("settings", "served"),
    [
        ({}, False),
        ({"tls_certificate_file": Path("c"), "tls_key_file": Path("k")}, False),
        ({"insecure": True}, True),
        ({"token_file": Path("t"), "allow_plaintext_token": True}, True),
        ({"tokens_file": Path("t"), "allow_plaintext_token": True}, True),
        ({"tls_authority_file": Path("a"), "tls_require_client_certificate": True}, True),
    ],
)
def test_other_machines_are_served_only_with_authentication(
    address: str, settings: dict[str, Any], served: bool
) -> None:
    config = SecurityConfig(**settings)

    if served:
        config.check_listen("worker.listen", address)
    else:
        with pytest.raises(ConfigError, match=r"worker\.listen: .* can be reached from other"):
            config.check_listen("worker.listen", address)
    config.check_listen("worker.listen", "127.0.0.1:0")
    config.check_listen("worker.listen", "[::1]:0")


def test_token_may_travel_under_tls(secret: Path) -> None:
    config = SecurityConfig(token_file=secret, tls_certificate_file=secret, tls_key_file=secret)

    assert list(config.problems_at("listen", "0.0.0.0:1")) == []
    assert config.tls


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
def test_split_refuses_values_that_are_not_addresses(address: str) -> None:
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


def test_address_file_is_written_atomically(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.address"

    write_address(file, "127.0.0.1:7")
    write_address(None, "127.0.0.1:8")

    assert file.read_text() == "127.0.0.1:7\n"
    assert os.listdir(tmp_path) == ["coordinator.address"]
