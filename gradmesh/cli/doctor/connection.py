"""Checks of the way to a coordinator: address, TLS, certificates, token."""

import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradmesh.cli.authority import moment, view
from gradmesh.cli.doctor.finding import Finding, fine, problem
from gradmesh.cli.doctor.handshake import Handshake, connect, shake_hands, spoken_at
from gradmesh.protos.errors import Forbidden, MeshError, Unauthenticated
from gradmesh.protos.version import VERSION
from gradmesh.sdk.cluster.status import fetch
from gradmesh.sdk.process.local_token import find_token
from gradmesh.sdk.process.network import SecurityConfig, is_loopback, split
from gradmesh.sdk.process.setting import ConfigError

if TYPE_CHECKING:
    from gradmesh.cli.authority import CertificateView

# OpenSSL's numbers of verification errors.
_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_NAME = (62, 64)


def connection_findings(
    address: str, security: SecurityConfig, timeout_s: float
) -> Iterator[Finding]:
    """Check the way to a coordinator, step by step, until a step fails.

    Args:
        address: The coordinator's address.
        security: Settings of this process.
        timeout_s: Longest wait of each step.
    """
    for step in (_reach, _protocol, _trust, _call):
        found = step(address, security, timeout_s)
        if found is not None:
            yield found
            if found.state == "problem":
                return


def _reach(address: str, security: SecurityConfig, timeout_s: float) -> Finding:
    tried = f"a TCP connection to {address}"
    host, port = split(address)
    try:
        connect(address, timeout_s).close()
    except socket.gaierror as error:
        seen, remedy = (
            f"the name {host!r} is not known here: {error.strerror}",
            "check its spelling; names of containers and pods are known inside their network only",
        )
    except ConnectionRefusedError:
        seen, remedy = (
            f"the machine answers, but nothing listens on port {port}",
            "start the coordinator, or compare the port with coordinator.listen in its log; one "
            "that listens on 127.0.0.1 can be reached from its own machine only",
        )
    except TimeoutError:
        seen, remedy = (
            f"no answer within {timeout_s:g} s",
            "a firewall or network policy drops the packets, or the machine is off; try from the "
            "coordinator's machine",
        )
    except OSError as error:
        seen, remedy = f"{error.strerror or error}", "check the address and the route to it"
    else:
        return fine("address", tried, "it is accepted")
    return problem("address", tried, seen, remedy)


def _protocol(address: str, security: SecurityConfig, timeout_s: float) -> Finding:
    wanted = "TLS" if security.tls else "plaintext"
    tried = f"whether the server speaks {wanted}, as this process is configured to"
    spoken = spoken_at(address, timeout_s)
    if spoken == wanted:
        return fine("protocol", tried, f"it speaks {spoken}")
    if spoken == "neither":
        seen = "it speaks neither gRPC in plaintext nor TLS"
        remedy = "another program listens there, or the server is overloaded; check the port"
    elif spoken == "TLS":
        seen = "the server speaks TLS, and this process would send plaintext"
        remedy = "set security.tls_authority_file to the ca.crt of the cluster"
    else:
        seen = "the server speaks plaintext, and this process has certificates"
        remedy = (
            "set security.tls_certificate_file and tls_key_file of the server, too, or remove "
            "the tls settings here"
        )
    return problem("protocol", tried, seen, remedy)


def _trust(address: str, security: SecurityConfig, timeout_s: float) -> Finding | None:
    """Check that both ends accept each other's certificates; None without TLS."""
    if not security.tls:
        return None
    tried = f"a TLS handshake with {address}"
    shaken = shake_hands(address, security, timeout_s, verify=True)
    if isinstance(shaken.error, ssl.SSLCertVerificationError):
        # The server's certificate is known only from a handshake that does not check it.
        seen = _certificate_of(shake_hands(address, security, timeout_s, verify=False))
        return _distrusted(tried, shaken.error, seen, address)
    if shaken.is_greeted:
        return fine("TLS", tried, "both ends accept each other's certificates")
    return _rejected(tried, shaken, security)


def _distrusted(
    tried: str,
    error: ssl.SSLCertVerificationError,
    seen: "CertificateView | None",
    address: str,
) -> Finding:
    """Explain why this process does not accept the server's certificate."""
    host = split(address)[0]
    if error.verify_code == _EXPIRED:
        when = f" on {moment(seen.ends)}" if seen else ""
        return problem(
            "server's certificate",
            tried,
            f"the server's certificate expired{when}",
            "renew it on the server (`gradmesh certs issue ROLE --renew`), which needs no "
            "restart; if that date is in the future, this machine's clock is ahead: compare "
            "`date -u` on both",
        )
    if error.verify_code == _NOT_YET_VALID:
        when = f" before {moment(seen.begins)}" if seen else ""
        return problem(
            "clock",
            tried,
            f"the server's certificate is not valid{when}",
            "this machine's clock is behind, or the certificate was made by a machine whose clock "
            "was ahead: compare `date -u` on both, and correct the clock",
        )
    if error.verify_code in _WRONG_NAME:
        names = f"; it is for {', '.join(seen.names) or 'no host'}" if seen else ""
        return problem(
            "server's name",
            tried,
            f"the server's certificate is not for {host!r}{names}",
            f"connect by one of its names, or issue it for this one: `gradmesh certs issue ROLE "
            f"--renew --name {host}`",
        )
    signer = f" {seen.issuer!r}" if seen else ""
    return problem(
        "authority",
        tried,
        f"this process does not trust the authority{signer} that signed the server's certificate "
        f"({error.verify_message})",
        "set security.tls_authority_file to the ca.crt that the server's certificate was issued "
        "from; both ends need the same",
    )


def _rejected(tried: str, shaken: Handshake, security: SecurityConfig) -> Finding:
    """Explain why the server does not accept this process's certificate."""
    said = getattr(shaken.error, "reason", None) or str(shaken.error or "it ended the connection")
    check, reason = "client's certificate", said.lower().replace("_", " ")
    if security.tls_certificate_file is None:
        return problem(
            check,
            tried,
            f"the server asks for a certificate, and this process has none ({reason})",
            "set security.tls_certificate_file and tls_key_file: `gradmesh certs issue client` "
            "makes them",
        )
    if "expired" in reason:
        return problem(
            check,
            tried,
            "the server says that this process's certificate has expired",
            "renew it (`gradmesh certs issue ROLE --renew`), or correct the server's clock if the "
            "certificate is still valid here: compare `date -u` on both",
        )
    return problem(
        check,
        tried,
        f"the server refuses this process's certificate ({reason})",
        "the server's security.tls_authority_file did not sign it, or it is not valid yet by the "
        "server's clock: use a certificate of the same authority, and compare `date -u` on both",
    )


def _call(address: str, security: SecurityConfig, timeout_s: float) -> Finding:
    tried = "a call (GetStatus) with the token and certificate of this process"
    found = None if security.token_file or security.tokens_file else find_token(address)
    shown = "the token that the cluster published to its user" if found else "this token"
    try:
        status = fetch(address, security, timeout_s)
    except Unauthenticated as error:
        has_token = security.token_file is not None or found is not None
        remedy = (
            "copy the cluster's token file to this machine again; it was changed, or belongs to "
            "another cluster"
            if has_token
            else "set security.token_file to the cluster's token"
            + (
                "; a cluster of this machine publishes it to the user who started it, so run the "
                "command as that user"
                if is_loopback(address)
                else ""
            )
        )
        refused = f"the server refuses {shown}" if has_token else "the server asks for a token"
        return problem("token", tried, f"{refused}: {error}", remedy)
    except Forbidden as error:
        remedy = (
            "use the token and the certificate of one role; a certificate needs one alternative "
            "name such as client.role.gradmesh, as `gradmesh certs issue client` makes it"
        )
        return problem("role", tried, str(error), remedy)
    except ConfigError as error:
        return problem("settings", tried, str(error), "correct the setting")
    except (MeshError, OSError) as error:
        remedy = "look at the coordinator's log; repeat with a longer --timeout-s"
        return problem("call", tried, str(error), remedy)
    if status.version != VERSION:
        seen = f"the coordinator runs {status.version}, this process {VERSION}"
        return problem("version", tried, seen, "install one version on all machines")
    by = f", by {shown}" if found or security.token_file else ""
    return fine("call", tried, f"{len(status.members)} members, version {status.version}{by}")


def _certificate_of(shaken: Handshake) -> "CertificateView | None":
    """Return what the server's certificate says, where the library to read it is installed."""
    if shaken.certificate is None:
        return None
    try:
        from cryptography import x509
    except ImportError:
        return None
    return view(x509.load_der_x509_certificate(shaken.certificate))
