"""Checks of the files of [security]: modes, tokens, certificates, roles, dates."""

import stat
from collections.abc import Iterator
from pathlib import Path

from gradmesh.cli import authority
from gradmesh.cli.authority import CertificateView, fits, load, moment, view
from gradmesh.cli.doctor.finding import Finding, fine, note, problem
from gradmesh.protos.rpcs import ADMIN, MAY_REGISTER
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.process.setting import ConfigError
from gradmesh.sdk.transport.security import TokenCheck, channel_credentials, read_token

UNUSABLE = "certificate files"
"""The check of files without which no connection can be tried."""

# A mounted Secret is readable by the pod's group.
_TOO_OPEN = stat.S_IWGRP | stat.S_IRWXO


def file_findings(security: SecurityConfig, role: str | None) -> Iterator[Finding]:
    """Check the files that the settings name.

    Args:
        security: The settings.
        role: Role that this process should have, if the user gave one.
    """
    for key in ("token_file", "tokens_file", "tls_key_file"):
        file: Path | None = getattr(security, key)
        if file is not None:
            yield _modes(key, file)
    if security.token_file is not None or security.tokens_file is not None:
        yield _tokens(security)
    if security.tls:
        yield from _certificates(security, role)


def _modes(key: str, file: Path) -> Finding:
    mode = stat.S_IMODE(file.stat().st_mode)
    tried = f"permissions of security.{key} {str(file)!r}"
    if mode & _TOO_OPEN:
        remedy = f"other users of this machine can use the secret: chmod 600 {file}, and replace it"
        return problem("file permissions", tried, f"mode {mode:04o}", remedy)
    return fine("file permissions", tried, f"mode {mode:04o}")


def _tokens(security: SecurityConfig) -> Finding:
    tried = "reading the tokens"
    try:
        read_token(security)
        TokenCheck(security)
    except ConfigError as error:
        return problem("token", tried, str(error), "`gradmesh token FILE` makes a token")
    except OSError as error:
        return problem("token", tried, str(error), "check the path and its permissions")
    return fine("token", tried, "they are well-formed")


def _certificates(security: SecurityConfig, role: str | None) -> Iterator[Finding]:
    tried = "loading certificates and key"
    try:
        channel_credentials(security)
    except (ConfigError, OSError) as error:
        remedy = "name a certificate and the key that was made with it, both in PEM form"
        yield problem(UNUSABLE, tried, str(error), remedy)
        return
    yield fine(UNUSABLE, tried, "they are PEM files, and the key fits")
    try:
        authority.check_library()
    except ConfigError as error:
        unread = "names and dates cannot be shown without the library for certificates"
        yield note("certificate", "reading the certificate", unread, str(error))
        return
    signer = security.tls_authority_file
    if signer is not None:
        yield _dates("authority", signer, view(load(signer)))
    own = security.tls_certificate_file
    if own is not None:
        seen = view(load(own))
        yield _dates("certificate", own, seen)
        if signer is not None:
            yield _signature(own, signer)
        yield _role(own, seen, role)


def _dates(check: str, file: Path, seen: CertificateView) -> Finding:
    tried = f"dates of {str(file)!r}"
    text = f"{seen.subject}: {seen.state}"
    if seen.state.startswith("expired"):
        remedy = (
            f"renew it (`gradmesh certs issue ROLE --renew` for one made by gradmesh certs); if "
            f"{moment(seen.ends)} is in the future, this machine's clock is ahead: compare "
            "`date -u` with another machine"
        )
        return problem(check, tried, text, remedy)
    if not seen.state.startswith("valid"):
        remedy = (
            "this machine's clock is behind, or that of the machine that made the certificate was "
            "ahead: compare `date -u` on both, correct the clock, and make the certificate again "
            "if it was the latter"
        )
        return problem("clock", tried, text, remedy)
    return fine(check, tried, text)


def _signature(own: Path, signer: Path) -> Finding:
    tried = f"whether {str(signer)!r} signed {str(own)!r}"
    if fits(load(own), load(signer)):
        return fine("certificate authority", tried, "it did")
    remedy = (
        "processes of one cluster have certificates of one authority: name the ca.crt of the "
        "folder that the certificate was issued from"
    )
    seen = f"{view(load(own)).issuer} signed it, and that is not this authority"
    return problem("certificate authority", tried, seen, remedy)


def _role(own: Path, seen: CertificateView, wanted: str | None) -> Finding:
    tried = f"role in {str(own)!r}"
    text = f"it names the role {seen.role!r}" if seen.role else "it names no role"
    if wanted is None:
        return fine("role", tried, text)
    if seen.role == ADMIN or wanted in MAY_REGISTER.get(seen.role, ()):
        return fine("role", tried, f"{text}, which may be a {wanted}")
    remedy = f"a {wanted} needs a certificate of its role: `gradmesh certs issue {wanted}`"
    return problem("role", tried, f"{text}, which may not be a {wanted}", remedy)
