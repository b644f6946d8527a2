"""TLS, mutual TLS and the token, all of them by files."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gradmesh.protos import errors
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.process.setting import ConfigError

Issue = Callable[..., SecurityConfig]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def stranger() -> trustme.CA:
    return trustme.CA()


def write(folder: Path, ca: trustme.CA) -> dict[str, Path]:
    """Write a certificate of the authority, replacing files that are there."""
    folder.mkdir(exist_ok=True)
    certificate = ca.issue_cert("127.0.0.1", "localhost")
    pems = {
        "tls_key_file": certificate.private_key_pem,
        "tls_certificate_file": certificate.cert_chain_pems[0],
        "tls_authority_file": ca.cert_pem,
    }
    for name, pem in pems.items():
        pem.write_to_path(folder / f"{name}.new")
        os.replace(folder / f"{name}.new", folder / name)
    return {name: folder / name for name in pems}


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> dict[str, Path]:
    return write(tmp_path / "good", authority)


@pytest.fixture
def strange_files(tmp_path: Path, stranger: trustme.CA) -> dict[str, Path]:
    return write(tmp_path / "strange", stranger)


def token(tmp_path: Path, text: str) -> Path:
    file = tmp_path / f"token-{abs(hash(text))}"
    file.write_text(text)
    return file


def test_tls_encrypts_with_the_authority_alone(
    serve: Any, dial: Any, describe: Any, files: dict[str, Path]
) -> None:
    server = serve(security=SecurityConfig(**files))
    client = SecurityConfig(tls_authority_file=files["tls_authority_file"])

    assert describe(dial(server.address, security=client)).name == "here"


@pytest.mark.parametrize("kind", ["plain", "wrong authority"])
def test_clients_that_cannot_trust_the_server_do_not_connect(
    serve: Any,
    dial: Any,
    describe: Any,
    files: dict[str, Path],
    strange_files: dict[str, Path],
    kind: str,
) -> None:
    server = serve(security=SecurityConfig(**files))
    other = SecurityConfig(tls_authority_file=strange_files["tls_authority_file"])
    client = None if kind == "plain" else other

    with pytest.raises(errors.Unreachable, match="do both ends agree on TLS"):
        describe(dial(server.address, security=client, patience_s=0))


def test_a_tls_client_refuses_a_plaintext_server(
    serve: Any, dial: Any, describe: Any, files: dict[str, Path]
) -> None:
    with pytest.raises(errors.Unreachable, match="do both ends agree on TLS"):
        describe(dial(serve().address, security=SecurityConfig(**files), patience_s=0))


def test_mutual_tls_requires_a_certificate_of_the_authority(
    serve: Any,
    dial: Any,
    describe: Any,
    files: dict[str, Path],
    strange_files: dict[str, Path],
    script: Any,
) -> None:
    server = serve(security=SecurityConfig(**files, tls_require_client_certificate=True))
    anonymous = SecurityConfig(tls_authority_file=files["tls_authority_file"])
    foreign = SecurityConfig(
        tls_authority_file=files["tls_authority_file"],
        tls_certificate_file=strange_files["tls_certificate_file"],
        tls_key_file=strange_files["tls_key_file"],
    )

    for refused in (anonymous, foreign):
        with pytest.raises(errors.Unreachable):
            describe(dial(server.address, security=refused, patience_s=0))
    assert script.calls["describe"] == 0
    assert describe(dial(server.address, security=SecurityConfig(**files))).name == "here"


def test_certificates_are_renewed_without_a_restart(
    serve: Any,
    dial: Any,
    describe: Any,
    tmp_path: Path,
    files: dict[str, Path],
    stranger: trustme.CA,
) -> None:
    server = serve(security=SecurityConfig(**files))
    old = tmp_path / "old.pem"
    old.write_bytes(files["tls_authority_file"].read_bytes())
    before = dial(server.address, security=SecurityConfig(tls_authority_file=old))
    describe(before)

    renewed = SecurityConfig(
        tls_authority_file=write(tmp_path / "good", stranger)["tls_authority_file"]
    )

    assert describe(dial(server.address, security=renewed)).name == "here"
    assert describe(before).name == "here"
    late = dial(server.address, security=SecurityConfig(tls_authority_file=old), patience_s=0)
    with pytest.raises(errors.Unreachable):
        describe(late)


def test_half_replaced_certificates_do_not_stop_a_server(
    serve: Any,
    dial: Any,
    describe: Any,
    files: dict[str, Path],
    strange_files: dict[str, Path],
) -> None:
    server = serve(security=SecurityConfig(**files))
    client = SecurityConfig(tls_authority_file=files["tls_authority_file"])

    for broken in (strange_files["tls_key_file"].read_bytes(), b"", b"garbage"):
        files["tls_key_file"].write_bytes(broken)

        assert describe(dial(server.address, security=client)).name == "here"


def test_files_that_do_not_fit_are_named(
    serve: Any, dial: Any, files: dict[str, Path], strange_files: dict[str, Path], tmp_path: Path
) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    wrong_key = {**files, "tls_key_file": strange_files["tls_key_file"]}

    with pytest.raises(ConfigError, match=r"security\.tls_certificate_file: cannot be used"):
        serve(security=SecurityConfig(**wrong_key))
    with pytest.raises(ConfigError, match=r"security\.tls_certificate_file: cannot be used"):
        serve(security=SecurityConfig(**{**files, "tls_certificate_file": garbage}))
    with pytest.raises(ConfigError, match=r"security\.tls_authority_file: cannot be used"):
        dial("127.0.0.1:1", security=SecurityConfig(tls_authority_file=garbage))


def test_an_authority_alone_does_not_make_a_plain_server(
    serve: Any, files: dict[str, Path]
) -> None:
    with pytest.raises(ConfigError, match=r"security\.tls_certificate_file: is missing"):
        serve(security=SecurityConfig(tls_authority_file=files["tls_authority_file"]))


@pytest.mark.parametrize(
    ("shown", "message"),
    [("other", "the token is wrong"), (None, "this cluster requires a token")],
)
def test_every_call_requires_the_token(
    serve: Any,
    dial: Any,
    describe: Any,
    script: Any,
    tmp_path: Path,
    shown: str | None,
    message: str,
) -> None:
    server = serve(security=SecurityConfig(token_file=token(tmp_path, "s3cret\n")))
    client = SecurityConfig(token_file=token(tmp_path, shown)) if shown else None

    with pytest.raises(errors.Unauthenticated, match=message) as info:
        describe(dial(server.address, security=client))

    assert "s3cret" not in str(info.value)
    assert script.calls["describe"] == 0


def test_a_valid_token_is_accepted(
    serve: Any, dial: Any, describe: Any, tmp_path: Path, files: dict[str, Path]
) -> None:
    plain = SecurityConfig(token_file=token(tmp_path, "s3cret\n"))
    encrypted = SecurityConfig(token_file=token(tmp_path, "s3cret"), **files)

    for security in (plain, encrypted):
        assert describe(dial(serve(security=security).address, security=security)).name == "here"


def test_probes_need_no_token(serve: Any, tmp_path: Path) -> None:
    server = serve(security=SecurityConfig(token_file=token(tmp_path, "s3cret")))

    with grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        status = stub.Check(health_pb2.HealthCheckRequest(), timeout=120).status

    assert status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("text", ["", " \n", "two words", "two\nlines", "clé", "\x00"], ids=repr)
def test_files_without_a_token_are_refused(
    serve: Any, dial: Any, tmp_path: Path, text: str
) -> None:
    security = SecurityConfig(token_file=token(tmp_path, text))

    with pytest.raises(ConfigError, match=r"security\.token_file: holds no token"):
        serve(security=security)
    with pytest.raises(ConfigError, match=r"security\.token_file: holds no token"):
        dial("127.0.0.1:1", security=security)
