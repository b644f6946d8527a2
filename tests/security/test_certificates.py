"""`gradmesh certs`, and renewal while a cluster works."""

import json
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradmesh.cli import main
from gradmesh.cli.authority import load
from gradmesh.cli.doctor.handshake import shake_hands
from gradmesh.engine.optim import SGD
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.rref.control import METHODS
from gradmesh.sdk.rpc.servicer import NoContexts, OwnerServicer
from gradmesh.sdk.transport.call import UNRESTRICTED, Caller
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.server import Server
from tests.security.certificate_folder import CertificateFolder


def test_files_are_private_and_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"
    where = ["--folder", str(folder)]
    assert main(["certs", "init", *where]) == 0
    assert main(["certs", "issue", "trainer", "--name", "host-7", *where]) == 0

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert {stat.S_IMODE(file.stat().st_mode) for file in before} == {0o600}
    assert main(["certs", "init", *where]) == 2
    assert main(["certs", "issue", "trainer", *where]) == 2
    assert "exists" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    assert main(["certs", "issue", "trainer", "--renew", *where]) == 0
    assert (folder / "trainer.crt").read_bytes() != before[folder / "trainer.crt"]


def test_show_says_what_an_operator_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = CertificateFolder(tmp_path / "ours", monkeypatch)
    other = CertificateFolder(tmp_path / "other", monkeypatch)
    ours.issue("trainer", "host-7", "10.1.2.3")
    folder = ["--folder", str(tmp_path / "ours")]

    assert main(["certs", "show", "--json", *folder]) == 0
    (authority, trainer) = json.loads(capsys.readouterr().out)
    assert authority["fits_authority"]
    assert trainer["role"] == "trainer"
    assert {"host-7", "10.1.2.3", "localhost", "127.0.0.1"} <= set(trainer["names"])
    assert trainer["state"] == "valid for 89 days"
    assert main(["certs", "show", *folder, "--authority", str(other.ca)]) == 1
    assert "NO" in capsys.readouterr().out
    ours.issue("trainer", at_days=-100)
    assert main(["certs", "show", "--json", *folder]) == 1
    assert "expired" in json.loads(capsys.readouterr().out)[1]["state"]


@pytest.mark.parametrize("text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_files_without_a_certificate_are_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.crt").write_text(text)

    assert main(["certs", "show", "--folder", str(tmp_path)]) == 2
    assert "holds no certificate" in capsys.readouterr().err


def test_without_the_library_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)

    assert main(["certs", "init", "--folder", str(tmp_path / "c")]) == 2
    assert "pip install 'gradmesh[certs]'" in capsys.readouterr().err


def test_token_writes_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "secrets" / "token"

    assert main(["token", str(file)]) == 0
    first = file.read_text()
    assert main(["token", str(file)]) == 0

    assert file.read_text() == first
    assert first.strip() not in capsys.readouterr().out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("lane", ["unary", "stream", "tcp"])
def test_certificates_are_renewed_under_load(
    lane: str,
    make_cluster: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = CertificateFolder(tmp_path / "ours", monkeypatch)
    ours.issue("admin")
    security = ours.security("admin", tls_require_client_certificate=True, certificate_roles=True)
    cluster = make_cluster(parameter_servers=1, security=security)
    mesh = cluster.connect(lane=lane)
    spec: dict[str, Any] = {"rows": 100, "dim": 4, "optimizer": SGD(lr=0.1)}
    table = mesh.table("user", **spec)
    done, stop, failures = [0], threading.Event(), []

    def work() -> None:
        while not stop.is_set():
            try:
                table.lookup([1, 2, 3])
                done[0] += 1
            except Exception as error:
                failures.append(error)
                return

    def busy(calls: int) -> None:
        """Wait until the client has made some more calls."""
        target = done[0] + calls
        while done[0] < target and not failures:
            threading.Event().wait(0.005)

    def served() -> int:
        from cryptography import x509

        seen = shake_hands(cluster.address, security, 20.0, verify=True)
        assert seen.is_greeted, seen.error
        assert seen.certificate is not None
        return x509.load_der_x509_certificate(seen.certificate).serial_number

    worker = threading.Thread(target=work, name="renewal-load")
    worker.start()
    try:
        for _ in range(3):
            busy(5)
            before = served()
            ours.issue("admin")
            busy(5)
            assert served() == load(ours.files("admin")["tls_certificate_file"]).serial_number
            assert served() != before
            # A new client presents the new certificate, and reads through the same servers.
            newcomer = cluster.connect(lane=lane)
            assert newcomer.table("user", **spec).lookup([1]).shape == (1, 4)
            newcomer.close()
    finally:
        stop.set()
        worker.join(30)
    assert failures == []


class _SeenCertificates:
    """Admits every caller, and records the certificates that are presented."""

    needs_certificate = True

    def __init__(self) -> None:
        self.serials: list[int] = []

    def admit(self, path: str, metadata: Any, certificate: Callable[[], Any]) -> Caller:
        from cryptography import x509

        if certificate is None:
            return UNRESTRICTED
        pem = certificate()["x509_pem_cert"][0]
        self.serials.append(x509.load_pem_x509_certificate(pem).serial_number)
        return UNRESTRICTED


def test_a_channel_from_before_a_renewal_presents_the_new_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradmesh.sdk.transport.channel._LOOK_S", 0.0)
    ours = CertificateFolder(tmp_path / "ours", monkeypatch)
    ours.issue("admin")
    security = ours.security("admin", tls_require_client_certificate=True)
    seen, service = _SeenCertificates(), owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]
    servicer = OwnerServicer("w", "worker", 1, Registry(), NoContexts())
    server = Server({service: servicer}, listen="127.0.0.1:0", security=security, check=seen)
    server.start()
    expected = []
    try:
        with Channel(server.address, "w", security=security, lane="unary") as channel:
            for _ in range(3):
                expected.append(load(ours.files("admin")["tls_certificate_file"]).serial_number)
                channel.call(METHODS["Describe"], owner_pb2.DescribeRequest(), Deadline.after(20))
                ours.issue("admin")
    finally:
        server.drain(1.0)

    assert seen.serials == expected
    assert len(set(expected)) == 3
