"""Certificates and tokens for gRPC and for lanes. The only place that builds credentials."""

import hmac
import ssl
from pathlib import Path

import grpc

from gradmesh.protos.errors import Unauthenticated
from gradmesh.sdk.process.errors import ConfigError, Problem
from gradmesh.sdk.process.security import SecurityConfig

_HEADER = "authorization"
# Load balancers and probes have no token, and the answer tells them nothing but "serving".
_OPEN_PREFIX = "/grpc.health.v1.Health/"


def server_credentials(config: SecurityConfig) -> grpc.ServerCredentials | None:
    """Return what a server listens with; None without TLS.

    Certificates are read again when their files change, so that they can be renewed without a
    restart; connections that exist keep the old ones.

    Raises:
        ConfigError: The files are no certificates, or there is none to show.
    """
    if not config.tls:
        return None
    if config.tls_certificate_file is None:
        # To listen in the clear would be a surprise to whoever named an authority.
        raise _unusable("tls_certificate_file", "is missing; a server shows one once TLS is on")
    _check_certificates(config)
    files = _CertificateFiles(config)
    credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
        files.configuration(),
        files.changed,  # type: ignore[arg-type]  # None means "keep", which the stubs do not know
        config.tls_require_client_certificate,
    )
    return credentials


class _CertificateFiles:
    """The server's certificate files and when they last changed."""

    def __init__(self, config: SecurityConfig) -> None:
        self._config = config
        self._seen = self._times()

    def _times(self) -> list[int]:
        config = self._config
        files = (config.tls_certificate_file, config.tls_key_file, config.tls_authority_file)
        return [file.stat().st_mtime_ns for file in files if file is not None]

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        config = self._config
        pair = (_read(config.tls_key_file) or b"", _read(config.tls_certificate_file) or b"")
        configuration: grpc.ServerCertificateConfiguration = (
            grpc.ssl_server_certificate_configuration([pair], _read(config.tls_authority_file))
        )
        return configuration

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new certificates, or None to keep the current ones."""
        try:
            times = self._times()
            if times == self._seen:
                return None
            _check_certificates(self._config)
            fresh = self.configuration()
        except (OSError, ConfigError):
            # Files are being replaced; the old certificates serve until the new ones are whole.
            return None
        self._seen = times
        return fresh


def channel_credentials(config: SecurityConfig) -> grpc.ChannelCredentials | None:
    """Return what a client connects with; None without TLS.

    Raises:
        ConfigError: The files are no certificates.
    """
    if not config.tls:
        return None
    _check_certificates(config)
    return grpc.ssl_channel_credentials(
        _read(config.tls_authority_file),
        _read(config.tls_key_file),
        _read(config.tls_certificate_file),
    )


def server_tls(config: SecurityConfig) -> ssl.SSLContext | None:
    """Return what a lane's server listens with, read anew for each connection; None without TLS."""
    if config.tls_certificate_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config.tls_certificate_file, config.tls_key_file)
    if config.tls_authority_file is not None:
        context.load_verify_locations(config.tls_authority_file)
    if config.tls_require_client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(config: SecurityConfig) -> ssl.SSLContext | None:
    """Return what a lane's client connects with; None without TLS."""
    if not config.tls:
        return None
    authority = config.tls_authority_file
    context = ssl.create_default_context(cafile=str(authority) if authority else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.tls_certificate_file is not None:
        context.load_cert_chain(config.tls_certificate_file, config.tls_key_file)
    return context


def call_metadata(config: SecurityConfig) -> tuple[tuple[str, str | bytes], ...]:
    """Return what a client sends with each call."""
    token = read_token(config)
    return ((_HEADER, f"Bearer {token}"),) if token is not None else ()


def read_token(config: SecurityConfig) -> str | None:
    """Return the cluster's token; None when it has none.

    Raises:
        ConfigError: The file holds nothing that could be a token.
    """
    if config.token_file is None:
        return None
    token = config.token_file.read_bytes().strip().decode("ascii", "replace")
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise _unusable("token_file", "holds no token; write one line of ASCII without spaces")
    return token


def is_open(path: str) -> bool:
    """Tell whether everybody may call an rpc at any time."""
    return path.startswith(_OPEN_PREFIX)


class TokenCheck:
    """Decides who may call.

    Args:
        token: What callers must show; None lets everybody in.
    """

    def __init__(self, token: str | None) -> None:
        self._expected = f"Bearer {token}".encode() if token is not None else None

    def admit(self, path: str, metadata: dict[str, str]) -> None:
        """Return if the caller may call `path`.

        Raises:
            Unauthenticated: No token, or a wrong one.
        """
        if self._expected is None or is_open(path):
            return
        shown = metadata.get(_HEADER)
        if shown is None:
            raise Unauthenticated("this cluster wants a token; set security.token_file")
        if not hmac.compare_digest(shown.encode(), self._expected):
            raise Unauthenticated("the token is wrong; compare security.token_file on both ends")


def _check_certificates(config: SecurityConfig) -> None:
    """Return if the files fit together; gRPC would only say that it cannot listen or connect."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    key = "tls_authority_file"
    try:
        if config.tls_authority_file is not None:
            context.load_verify_locations(config.tls_authority_file)
        if config.tls_certificate_file is not None:
            key = "tls_certificate_file"
            # Without a password OpenSSL would ask for it on the terminal.
            context.load_cert_chain(config.tls_certificate_file, config.tls_key_file, lambda: "")
    except ssl.SSLError as error:
        text = f"cannot be used: {error.reason or error}; give PEM files that belong together"
        raise _unusable(key, text) from None


def _unusable(key: str, text: str) -> ConfigError:
    return ConfigError([Problem(f"security.{key}", text)])


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path is not None else None
