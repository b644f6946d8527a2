"""Certificates for tests, made as `gradmesh certs` makes them, also at other times."""

import datetime
from pathlib import Path

import pytest

from gradmesh.cli import authority
from gradmesh.cli.authority import Authority
from gradmesh.sdk.process.network import SecurityConfig


class CertificateFolder:
    """An authority, and certificates that it issues at any time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._authority = Authority(folder)
        # Old enough for certificates of the past.
        self._at(-300)
        self._authority.make()
        self._at(0)
        self.ca = self._authority.certificate_file

    def issue(self, role: str, *names: str, at_days: int = 0, renew: bool = True) -> None:
        """Issue a certificate for 90 days, as if some days had passed."""
        self._at(at_days)
        self._authority.issue(role, names, 90, renew=renew)
        self._at(0)

    def security(self, role: str, **settings: object) -> SecurityConfig:
        """Return the settings of a process with the certificate of a role."""
        return SecurityConfig(**{**self.files(role), **settings})  # type: ignore[arg-type]

    def files(self, role: str) -> dict[str, Path]:
        folder = self.ca.parent
        return {
            "tls_certificate_file": folder / f"{role}.crt",
            "tls_key_file": folder / f"{role}.key",
            "tls_authority_file": self.ca,
        }

    def _at(self, days: int) -> None:
        def now() -> datetime.datetime:
            return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)

        self._patch.setattr(authority, "_now", now)
