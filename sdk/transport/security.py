"""Certificates and tokens of gRPC and lanes: the only place that builds credentials."""

import hashlib
import re
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, final

import grpc

from gradmesh.protos.errors import Forbidden, TicketRejected, Unauthenticated
from gradmesh.protos.rpcs import ADMIN, ROLES
from gradmesh.protos.ticket import SESSION_METADATA, TICKET_METADATA, verify
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.process.setting import ConfigError, Problem
from gradmesh.sdk.transport.call import UNRESTRICTED, Caller
from gradmesh.sdk.transport.identity import MemberIdentity

T = TypeVar("T")

_HEADER, _BEARER = "authorization", "Bearer "
_SUM = "sha256:"
# The alternative name that gives a certificate's role, such as trainer.role.gradmesh, ends in this.
_ROLE_NAME = ".role.gradmesh"
_ALTERNATIVE_NAMES = "x509_subject_alternative_name"
# Load balancers and probes have no token, and the response says nothing but "serving".
_OPEN_PREFIX = "/grpc.health.v1.Health/"
_MAX_VERIFIED = 4096


def server_credentials(config: SecurityConfig) -> grpc.ServerCredentials | None:
    """Return the gRPC credentials of a server; None without TLS.

    Certificates are read again when their files change, so that they can be renewed without a
    restart; connections that exist keep the old ones.

    Raises:
        ConfigError: The files are not certificates, or there is none to show.
    """
    if not config.tls:
        return None
    if config.tls_certificate_file is None:
        # A user who configured an authority does not expect plaintext.
        raise _unusable("tls_certificate_file", "is missing; a server shows one once TLS is on")
    _check_certificates(config)
    files = CertificateFiles(config, _server_configuration)
    credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
        _server_configuration(config),
        files.changed,  # type: ignore[arg-type]  # the stubs lack None for "keep"
        config.tls_require_client_certificate,
    )
    return credentials


def _server_configuration(config: SecurityConfig) -> grpc.ServerCertificateConfiguration:
    pair = (_read(config.tls_key_file) or b"", _read(config.tls_certificate_file) or b"")
    configuration: grpc.ServerCertificateConfiguration = grpc.ssl_server_certificate_configuration(
        [pair], _read(config.tls_authority_file)
    )
    return configuration


@final
class CertificateFiles(Generic[T]):
    """The certificate files of a process, read again after they have changed.

    Args:
        config: Names the files.
        read: Returns what is made of them.
    """

    def __init__(self, config: SecurityConfig, read: Callable[[SecurityConfig], T]) -> None:
        self._config = config
        self._read = read
        self._seen = self._times()

    def _times(self) -> list[int]:
        config = self._config
        files = (config.tls_certificate_file, config.tls_key_file, config.tls_authority_file)
        return [file.stat().st_mtime_ns for file in files if file is not None]

    def changed(self) -> T | None:
        """Return what the new files hold, or None to keep the current ones."""
        try:
            times = self._times()
            if times == self._seen:
                return None
            _check_certificates(self._config)
            fresh = self._read(self._config)
        except (OSError, ConfigError):
            # Files are being replaced; the former certificates are used until the new are whole.
            return None
        self._seen = times
        return fresh


def channel_credentials(config: SecurityConfig) -> grpc.ChannelCredentials | None:
    """Return the gRPC credentials of a client; None without TLS.

    Raises:
        ConfigError: The files are not certificates.
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
    """Return the TLS context of a lane's server, read again per connection; None without TLS."""
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
    """Return the TLS context of a lane's client; None without TLS."""
    if not config.tls:
        return None
    authority = config.tls_authority_file
    context = ssl.create_default_context(cafile=str(authority) if authority else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.tls_certificate_file is not None:
        context.load_cert_chain(config.tls_certificate_file, config.tls_key_file)
    return context


def token_metadata(config: SecurityConfig) -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata with the token of this process, for the coordinator only."""
    token = read_token(config)
    return ((_HEADER, f"{_BEARER}{token}"),) if token is not None else ()


def read_token(config: SecurityConfig) -> str | None:
    """Return the token that this process shows; None when it has none.

    Raises:
        ConfigError: The file does not hold a token.
    """
    if config.token_file is None:
        return None
    token = config.token_file.read_bytes().strip().decode("ascii", "replace")
    if not _is_token(token) or token.startswith(_SUM):
        raise _unusable("token_file", "holds no token; write one line of ASCII without spaces")
    return token


def is_open(path: str) -> bool:
    """Return whether an rpc is open to every caller at any time."""
    return path.startswith(_OPEN_PREFIX)


MemberOfSession: TypeAlias = Callable[[bytes], tuple[str, int]]
"""Returns the member with a session key; an empty name if there is none."""


def _no_member(session: bytes) -> tuple[str, int]:
    return "", 0


class CallerCheck(Protocol):
    """Decides who may call what."""

    @property
    def needs_certificate(self) -> bool:
        """Whether `admit` reads the certificate of the caller."""

    def admit(
        self,
        path: str,
        metadata: Mapping[str, str | bytes],
        certificate: Callable[[], Mapping[str, Any]] | None,
    ) -> Caller:
        """Return the caller of `path`, if it may call it.

        Args:
            path: The rpc.
            metadata: Of the call.
            certificate: Returns the properties of the caller's certificate; None while they are
                not known, before the call has a thread: then only token or ticket are checked.

        Raises:
            Unauthenticated: No token or ticket, or a wrong one.
            Forbidden: The role of the token, ticket or certificate may not, or there is none.
        """


class TokenCheck:
    """Admits callers by their long-lived tokens, certificates, or both: the coordinator's check.

    Args:
        config: The tokens that callers must show, and whether their certificates name roles;
            without either every caller may call everything.
        member_of: Returns name and incarnation of the member with a session key.

    Raises:
        ConfigError: The files do not hold tokens.
    """

    def __init__(self, config: SecurityConfig, member_of: MemberOfSession = _no_member) -> None:
        self._tokens = _accepted(config)
        self._certificate_roles = config.certificate_roles
        self._member_of = member_of

    @property
    def needs_certificate(self) -> bool:
        """Whether `admit` reads the certificate of the caller."""
        return self._certificate_roles

    def admit(
        self,
        path: str,
        metadata: Mapping[str, str | bytes],
        certificate: Callable[[], Mapping[str, Any]] | None,
    ) -> Caller:
        """Return the caller, as `CallerCheck.admit`."""
        if is_open(path):
            return UNRESTRICTED
        caller = UNRESTRICTED if self._tokens is None else self._by_token(metadata)
        caller.check(path)
        if self._certificate_roles and certificate is not None:
            caller = _agreed(caller, _by_certificate(certificate()), path)
        session = metadata.get(SESSION_METADATA, b"")
        if caller.is_authenticated and isinstance(session, bytes) and session:
            name, incarnation = self._member_of(session)
            return replace(caller, session=session, name=name, incarnation=incarnation)
        return caller

    def _by_token(self, metadata: Mapping[str, str | bytes]) -> Caller:
        shown = metadata.get(_HEADER)
        if not isinstance(shown, str):
            raise Unauthenticated("this cluster requires a token; set security.token_file")
        assert self._tokens is not None
        # Looked up by hash, so that the time of the search reveals nothing about the tokens.
        role = self._tokens.get(_sum_of(shown.removeprefix(_BEARER)))
        if role is None or not shown.startswith(_BEARER):
            raise Unauthenticated("the token is wrong; compare security.token_file on both ends")
        return Caller(role)


class TicketCheck:
    """Admits callers by tickets: the check of every member that serves.

    Long-lived tokens are not accepted, so that no process has a reason to send one to a member.

    Args:
        config: Whether certificates must name roles, too.
        identity: This process.
    """

    def __init__(self, config: SecurityConfig, identity: MemberIdentity) -> None:
        self._certificate_roles = config.certificate_roles
        self._identity = identity
        self._lock = threading.Lock()  # guards changes of _verified
        # Verified tickets: a call costs a lookup instead of a signature.
        self._verified: OrderedDict[bytes, tuple[Caller, int]] = OrderedDict()

    @property
    def needs_certificate(self) -> bool:
        """Whether `admit` reads the certificate of the caller."""
        return self._certificate_roles

    def admit(
        self,
        path: str,
        metadata: Mapping[str, str | bytes],
        certificate: Callable[[], Mapping[str, Any]] | None,
    ) -> Caller:
        """Return the caller, as `CallerCheck.admit`.

        Raises:
            TicketRejected: No ticket, or one that is expired or for another process.
        """
        if is_open(path):
            return UNRESTRICTED
        caller = self._by_ticket(metadata.get(TICKET_METADATA))
        caller.check(path)
        if self._certificate_roles and certificate is not None:
            caller = _agreed(caller, _by_certificate(certificate()), path)
        return caller

    def _by_ticket(self, shown: str | bytes | None) -> Caller:
        me = self._identity
        if not isinstance(shown, bytes):
            raise TicketRejected(
                f"{me.name!r} accepts calls with a ticket of the coordinator, not with a token; "
                "connect through the coordinator",
                audience=me.name,
            )
        now_ms = me.clock.now_ms()
        if now_ms is None:
            raise TicketRejected(f"{me.name!r} has not registered yet; try again", audience=me.name)
        known = self._verified.get(shown)
        if known is not None and now_ms < known[1]:
            return known[0]
        ticket = verify(shown, me.session, (me.name, me.incarnation), now_ms)
        if ticket.role not in ROLES:
            raise Forbidden(f"a ticket of the role {ticket.role!r}, which is not known here")
        name, incarnation = ticket.caller
        caller = Caller(ticket.role, name, incarnation, member_role=ticket.member_role)
        with self._lock:
            self._verified[shown] = caller, ticket.expires_ms
            if len(self._verified) > _MAX_VERIFIED:
                self._verified.popitem(last=False)
        return caller


def _agreed(caller: Caller, certified: Caller, path: str) -> Caller:
    """Return the caller with the rights that token or ticket and certificate both give."""
    certified.check(path)
    if caller.role == ADMIN:
        return replace(caller, role=certified.role, is_authenticated=True)
    if certified.role not in (ADMIN, caller.role):
        raise caller.refuse(f"be shown with a certificate of {certified.role!r}")
    return caller


def _accepted(config: SecurityConfig) -> dict[str, str] | None:
    """Return the roles of the accepted tokens, by hash; None if callers need no token.

    The only token of `token_file` has the role admin.
    """
    if config.tokens_file is None:
        token = read_token(config)
        return None if token is None else {_sum_of(token): ADMIN}
    found: dict[str, str] = {}
    lines = config.tokens_file.read_bytes().decode("ascii", "replace").splitlines()
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        role, _, token = (part.strip() for part in text.partition(":"))
        if text and (role not in ROLES or not _is_token(token)):
            raise _unusable(
                "tokens_file",
                f"line {number} is not role:token; roles are {', '.join(ROLES)}, a token is ASCII "
                "without spaces, or sha256: and its sum in hexadecimal digits",
            )
        if text:
            is_sum = token.startswith(_SUM)
            found[token.removeprefix(_SUM).lower() if is_sum else _sum_of(token)] = role
    if not found:
        raise _unusable("tokens_file", "holds no token; write a line role:token for each")
    return found


def _is_token(text: str) -> bool:
    if text.startswith(_SUM):
        return re.fullmatch("[0-9a-fA-F]{64}", text.removeprefix(_SUM)) is not None
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _sum_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _by_certificate(properties: Mapping[str, Any]) -> Caller:
    """Return the role that one of the names of a certificate gives."""
    names = [name.decode(errors="replace") for name in properties.get(_ALTERNATIVE_NAMES, ())]
    roles = [name.removesuffix(_ROLE_NAME) for name in names if name.endswith(_ROLE_NAME)]
    known = [role for role in roles if role in ROLES]
    if len(known) != 1:
        raise Forbidden(
            f"the certificate names {len(known)} roles: give it one alternative name such as "
            f"trainer{_ROLE_NAME}",
            names=", ".join(names),
        )
    return Caller(known[0])


def _check_certificates(config: SecurityConfig) -> None:
    """Check that the files fit together; gRPC only reports that it cannot listen or connect."""
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
