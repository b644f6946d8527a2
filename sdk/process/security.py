"""Who may speak with a process: certificates and a bearer token, all of them as files."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from gradmesh.sdk.process.address import is_loopback
from gradmesh.sdk.process.errors import Problem
from gradmesh.sdk.process.setting import Section, setting


def readable_file(path: Path) -> Path:
    """Check that a path is a file that this process can read."""
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise ValueError(
            f"expected a readable file, got {str(path)!r}: {error.strerror}"
        ) from error


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig(Section):
    """Certificates and token of a process, for the calls it serves and for those it makes."""

    section: ClassVar[str] = "security"

    tls_certificate_file: Path | None = setting(
        None, "PEM certificate this process shows to others; turns TLS on.", check=readable_file
    )
    tls_key_file: Path | None = setting(
        None, "PEM private key of the certificate.", check=readable_file
    )
    tls_authority_file: Path | None = setting(
        None, "PEM certificates of the authority that signs the others'.", check=readable_file
    )
    tls_require_client_certificate: bool = setting(
        False, "Whether callers must show a certificate too (mutual TLS)."
    )
    token_file: Path | None = setting(
        None,
        "File with the bearer token that this process shows, and wants to see if there is no "
        "tokens_file.",
        check=readable_file,
    )
    tokens_file: Path | None = setting(
        None,
        "File with the tokens that callers may show, a line role:token or role:sha256:SUM each.",
        check=readable_file,
    )
    certificate_roles: bool = setting(
        False, "Whether callers' certificates must name their role: ROLE.role.gradmesh."
    )
    allow_plaintext_token: bool = setting(
        False, "Whether the token may travel without TLS beyond this machine."
    )

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.tls_certificate_file is not None or self.tls_authority_file is not None

    def problems(self) -> Iterable[Problem]:
        """Yield halves of a pair that stand alone."""
        if self.tls_certificate_file is not None and self.tls_key_file is None:
            yield Problem("tls_key_file", "is missing; a certificate needs its private key")
        if self.tls_key_file is not None and self.tls_certificate_file is None:
            yield Problem("tls_certificate_file", "is missing; a private key needs a certificate")
        if self.tls_require_client_certificate and self.tls_authority_file is None:
            yield Problem(
                "tls_authority_file", "is missing; it says which client certificates are good"
            )

        if self.certificate_roles and not self.tls_require_client_certificate:
            yield Problem(
                "tls_require_client_certificate", "must be true where certificate_roles is"
            )

    def problems_at(self, key: str, address: str) -> Iterable[Problem]:
        """Yield what is unsafe when the address of setting `key` is served or called."""
        tokens = self.token_file is not None or self.tokens_file is not None
        plain = tokens and not self.tls
        if plain and not self.allow_plaintext_token and not is_loopback(address):
            yield Problem(
                key,
                f"the token would travel unencrypted to or from {address!r}; set "
                "security.tls_certificate_file, or security.allow_plaintext_token = true "
                "on a network you trust",
            )
