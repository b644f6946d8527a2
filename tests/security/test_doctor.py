"""`gradmesh doctor` on broken set-ups, through the command line."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from gradmesh.cli import main
from gradmesh.sdk.process.network import SecurityConfig
from tests.security.certificate_folder import CertificateFolder


class Patient:
    """A coordinator with some settings, and the doctor who looks at it from a client."""

    def __init__(
        self, make_cluster: Callable[..., Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._make, self._capsys = make_cluster, capsys
        self.address = ""

    def serve(self, security: SecurityConfig | None) -> None:
        self.address = self._make(start_servers=False, security=security).address

    def examine(self, *flags: object, address: str = "") -> tuple[int, dict[str, Any], str]:
        """Return the exit code, the findings by check, and what a terminal shows."""
        where = ["doctor", "--coordinator", address or self.address, *map(str, flags)]
        shown = main(where)
        text = self._capsys.readouterr().out
        code = main([*where, "--json"])
        seen = json.loads(self._capsys.readouterr().out)
        assert shown == code
        assert seen["healthy"] is (code == 0)
        problems = [one for one in seen["checks"] if one["state"] == "problem"]
        # What to do is the last thing on the screen.
        assert all(one["remedy"] in text.partition("What to do:")[2] for one in problems)
        return code, {one["check"]: one for one in seen["checks"]}, text

    def problem(self, *flags: object, address: str = "") -> dict[str, str]:
        """Return the only problem that the doctor finds."""
        code, checks, text = self.examine(*flags, address=address)
        assert code == 1, text
        (found,) = (one for one in checks.values() if one["state"] == "problem")
        assert found["tried"]
        assert found["seen"]
        assert found["remedy"]
        return found


@pytest.fixture
def patient(make_cluster: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> Patient:
    return Patient(make_cluster, capsys)


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CertificateFolder:
    made = CertificateFolder(tmp_path / "ours", monkeypatch)
    for role in ("coordinator", "client"):
        made.issue(role)
    return made


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    assert main(["token", str(file)]) == 0
    return file


def flags(security: dict[str, Path]) -> list[str]:
    return [
        part for key, file in security.items() for part in (f"--{key.replace('_', '-')}", str(file))
    ]


MUTUAL = {"tls_require_client_certificate": True, "certificate_roles": True}


def test_a_healthy_cluster_without_security_is_all_green(patient: Patient) -> None:
    patient.serve(None)

    code, checks, text = patient.examine()

    assert code == 0
    assert {one["state"] for one in checks.values()} <= {"ok", "note"}
    assert checks["call"]["state"] == "ok"
    assert "✗" not in text


def test_a_healthy_cluster_with_mutual_tls_roles_and_token_is_all_green(
    patient: Patient, ours: CertificateFolder, token: Path
) -> None:
    patient.serve(ours.security("coordinator", token_file=token, **MUTUAL))

    code, checks, text = patient.examine(
        *flags(ours.files("client")), "--token-file", token, "--role", "client"
    )

    assert code == 0, text
    for check in ("certificate", "certificate authority", "role", "TLS", "call"):
        assert checks[check]["state"] == "ok"


def test_wrong_authority_is_named(
    patient: Patient, ours: CertificateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = CertificateFolder(tmp_path / "other", monkeypatch)
    patient.serve(ours.security("coordinator"))

    found = patient.problem("--tls-authority-file", other.ca)

    assert found["check"] == "authority"
    assert "does not trust the authority 'CN=gradmesh development authority'" in found["seen"]
    assert "security.tls_authority_file" in found["remedy"]


def test_a_client_certificate_of_another_authority_is_named(
    patient: Patient, ours: CertificateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = CertificateFolder(tmp_path / "other", monkeypatch)
    other.issue("client")
    patient.serve(ours.security("coordinator", **MUTUAL))
    mixed = {**other.files("client"), "tls_authority_file": ours.ca}

    _, checks, _ = patient.examine(*flags(mixed))

    assert checks["certificate authority"]["state"] == "problem"
    assert "that is not this authority" in checks["certificate authority"]["seen"]
    assert "server refuses this process's certificate" in checks["client's certificate"]["seen"]


def test_wrong_alternative_name_is_named(patient: Patient, tmp_path: Path) -> None:
    ca = trustme.CA()
    made = ca.issue_cert("coordinator.example.org", "10.1.2.3")
    ca.cert_pem.write_to_path(tmp_path / "ca.crt")
    made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    patient.serve(
        SecurityConfig(
            tls_certificate_file=tmp_path / "both.pem", tls_key_file=tmp_path / "both.pem"
        )
    )

    found = patient.problem("--tls-authority-file", tmp_path / "ca.crt")

    assert "not for '127.0.0.1'" in found["seen"]
    assert "it is for coordinator.example.org, 10.1.2.3" in found["seen"]
    assert "--renew --name 127.0.0.1" in found["remedy"]


def test_wrong_role_is_named(patient: Patient, ours: CertificateFolder) -> None:
    patient.serve(ours.security("coordinator", **MUTUAL))

    no_role = patient.problem(*flags(ours.files("coordinator")))
    wrong_role = patient.problem(*flags(ours.files("client")), "--role", "trainer")

    assert "names 0 roles" in no_role["seen"]
    assert "client.role.gradmesh" in no_role["remedy"]
    assert "may not be a trainer" in wrong_role["seen"]
    assert "gradmesh certs issue trainer" in wrong_role["remedy"]


def test_an_expired_certificate_of_the_server_is_named(
    patient: Patient, ours: CertificateFolder
) -> None:
    ours.issue("coordinator", at_days=-100)
    patient.serve(ours.security("coordinator"))

    found = patient.problem("--tls-authority-file", ours.ca)

    assert "the server's certificate expired on 20" in found["seen"]
    assert "--renew" in found["remedy"]
    assert "date -u" in found["remedy"]


def test_an_expired_certificate_of_this_process_is_named(
    patient: Patient, ours: CertificateFolder
) -> None:
    ours.issue("client", at_days=-100)
    patient.serve(ours.security("coordinator", **MUTUAL))

    _, checks, _ = patient.examine(*flags(ours.files("client")))

    assert "expired" in checks["certificate"]["seen"]
    assert checks["client's certificate"]["state"] == "problem"


def test_a_clock_that_is_behind_is_named(patient: Patient, ours: CertificateFolder) -> None:
    ours.issue("coordinator", at_days=2)
    patient.serve(ours.security("coordinator"))

    found = patient.problem("--tls-authority-file", ours.ca)

    assert found["check"] == "clock"
    assert "is not valid before 20" in found["seen"]
    assert "date -u" in found["remedy"]


def test_a_missing_and_a_wrong_token_are_named(
    patient: Patient, token: Path, tmp_path: Path
) -> None:
    patient.serve(SecurityConfig(token_file=token))
    other = tmp_path / "other"
    main(["token", str(other)])

    missing = patient.problem()
    wrong = patient.problem("--token-file", other)

    assert "asks for a token" in missing["seen"]
    assert "security.token_file" in missing["remedy"]
    assert "refuses this token" in wrong["seen"]
    assert "another cluster" in wrong["remedy"]


def test_permissions_that_others_can_use_are_named(patient: Patient, token: Path) -> None:
    patient.serve(SecurityConfig(token_file=token))
    token.chmod(0o644)

    found = patient.problem("--token-file", token)

    assert found["seen"] == "mode 0644"
    assert f"chmod 600 {token}" in found["remedy"]


def test_a_key_of_another_certificate_is_named(patient: Patient, ours: CertificateFolder) -> None:
    patient.serve(ours.security("coordinator"))
    mixed = {**ours.files("client"), "tls_key_file": ours.files("coordinator")["tls_key_file"]}

    _, checks, _ = patient.examine(*flags(mixed))

    assert "belong together" in checks["certificate files"]["seen"]


def test_plaintext_against_tls_is_named(patient: Patient, ours: CertificateFolder) -> None:
    patient.serve(ours.security("coordinator"))

    found = patient.problem()

    assert "the server speaks TLS" in found["seen"]
    assert "ca.crt" in found["remedy"]


def test_tls_against_plaintext_is_named(patient: Patient, ours: CertificateFolder) -> None:
    patient.serve(None)

    found = patient.problem("--tls-authority-file", ours.ca)

    assert "the server speaks plaintext" in found["seen"]


def test_a_missing_client_certificate_is_named(patient: Patient, ours: CertificateFolder) -> None:
    patient.serve(ours.security("coordinator", **MUTUAL))

    found = patient.problem("--tls-authority-file", ours.ca)

    assert "asks for a certificate, and this process has none" in found["seen"]


@pytest.fixture
def unused() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_unreachable_addresses_are_named(patient: Patient, unused: str) -> None:
    refused = patient.problem(address=unused)
    unknown = patient.problem(address="no-such-host.invalid:7070")

    assert "nothing listens on port" in refused["seen"]
    assert "'no-such-host.invalid' is not known here" in unknown["seen"]


def test_another_program_at_the_address_is_named(patient: Patient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        found = patient.problem("--timeout-s", "0.3", address=address)

    assert "neither gRPC in plaintext nor TLS" in found["seen"]


def test_names_from_the_other_side_cannot_control_the_terminal(
    patient: Patient, ours: CertificateFolder, tmp_path: Path
) -> None:
    hostile = trustme.CA(organization_name="\x1b]0;owned\x07 [/x] [bold]")
    made = hostile.issue_cert("127.0.0.1")
    made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    patient.serve(
        SecurityConfig(
            tls_certificate_file=tmp_path / "both.pem", tls_key_file=tmp_path / "both.pem"
        )
    )

    code, checks, text = patient.examine("--tls-authority-file", ours.ca)

    assert code == 1
    assert "owned" in checks["authority"]["seen"]
    assert "[/x] [bold]" in text, "shown as it is, not as markup"
    assert not {"\x1b", "\x07"} & set(text)


def test_the_command_works_as_a_process(tmp_path: Path, unused: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradmesh", "doctor", "--coordinator", unused],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if not name.startswith("GRADMESH_")},
    )

    assert done.returncode == 1, done.stderr
    assert "✗ address" in done.stdout
    assert (
        done.stdout.rstrip().splitlines()[-1].strip().startswith("address: start the coordinator")
    )
