"""Connecting to a server step by step, so that each step's failure has a name.

gRPC reports only that it could not connect.
"""

import socket
import ssl
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from gradmesh.sdk.process.network import SecurityConfig, split

Spoken: TypeAlias = Literal["plaintext", "TLS", "neither"]

# The opening of HTTP/2, and an empty SETTINGS frame; a server answers with its own.
_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_FRAME_BYTES = 9
_SETTINGS = 4
_TYPE = 3  # place of the type in a frame's header


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """How a TLS handshake went.

    Attributes:
        error: Why it failed, or the server ended the connection after it.
        certificate: The server's certificate, if it was sent.
        is_greeted: Whether the server speaks to this client: it accepted its certificate.
    """

    error: OSError | None = None
    certificate: bytes | None = None
    is_greeted: bool = False


def connect(address: str, timeout_s: float) -> socket.socket:
    """Open a TCP connection.

    Raises:
        OSError: There is none: the name is unknown, nothing listens, or nothing answers.
    """
    return socket.create_connection(split(address), timeout_s)


def spoken_at(address: str, timeout_s: float) -> Spoken:
    """Return what a server speaks: HTTP/2 in plaintext, or TLS."""
    try:
        with connect(address, timeout_s) as plain:
            plain.sendall(_OPENING)
            if _is_settings(_receive(plain)):
                return "plaintext"
    except OSError:
        pass  # a TLS server ends the connection
    tried = shake_hands(address, SecurityConfig(), timeout_s, verify=False)
    return "TLS" if tried.certificate is not None else "neither"


def shake_hands(
    address: str, security: SecurityConfig, timeout_s: float, *, verify: bool
) -> Handshake:
    """Try a TLS handshake as a client of these settings.

    Args:
        address: The server.
        security: Authority, certificate and key of this process.
        timeout_s: Longest wait of each step.
        verify: Whether to check the server's certificate.
    """
    context = ssl.create_default_context(
        cafile=str(security.tls_authority_file) if security.tls_authority_file else None
    )
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if security.tls_certificate_file is not None:
        context.load_cert_chain(security.tls_certificate_file, security.tls_key_file)
    certificate = None
    try:
        with (
            connect(address, timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=split(address)[0]) as secure,
        ):
            certificate = secure.getpeercert(binary_form=True)
            secure.sendall(_OPENING)
            # In TLS 1.3 the server checks the client's certificate after the handshake.
            if _is_settings(_receive(secure)):
                return Handshake(certificate=certificate, is_greeted=True)
            return Handshake(certificate=certificate)
    except OSError as error:
        return Handshake(error=error, certificate=certificate)


def _receive(connection: socket.socket) -> bytes:
    received = b""
    while len(received) < _FRAME_BYTES:
        part = connection.recv(_FRAME_BYTES - len(received))
        if not part:
            break
        received += part
    return received


def _is_settings(header: bytes) -> bool:
    return len(header) == _FRAME_BYTES and header[_TYPE] == _SETTINGS
