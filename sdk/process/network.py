"""Network settings of a process: addresses, certificates, tokens, lanes."""

import ipaddress
import os
import re
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias, final

from gradmesh.sdk.process.setting import ConfigError, Problem, Section, setting

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]/]+):(?P<port>[0-9]{1,5})")


def split(address: str) -> tuple[str, int]:
    """Split `host:port` into host (without brackets) and port.

    Raises:
        ValueError: The text is not an address.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"expected host:port such as '127.0.0.1:7070', got {address!r}")
    return match["host"].strip("[]"), int(match["port"])


def join(host: str, port: int) -> str:
    """Join host and port, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening(address: str) -> str:
    """Check an address to listen on; port 0 takes a free port."""
    split(address)
    return address


def reachable(address: str) -> str:
    """Check an address to connect to; port 0 is refused."""
    if split(address)[1] == 0:
        raise ValueError(f"expected the port that the other side listens on, got {address!r}")
    return address


def is_loopback(address: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    host = split(address)[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_everywhere(address: str) -> bool:
    """Return whether an address to listen on means all interfaces: clients cannot connect to it."""
    try:
        return ipaddress.ip_address(split(address)[0]).is_unspecified
    except ValueError:
        return False


def write_address(file: Path | None, address: str) -> None:
    """Write the bound address to a file, atomically, for other processes to read.

    Args:
        file: The file; None does nothing.
        address: The address with its real port.
    """
    if file is None:
        return
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(address + "\n", encoding="utf-8")
    draft.replace(file)


_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


def worker_name(name: str) -> str:
    """Check the name of a process.

    Raises:
        ValueError: It is not a DNS label of at most 63 characters (dots allowed), as names of
            Kubernetes pods are.
    """
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            "expected at most 63 of a-z, 0-9, '-' and '.', beginning and ending with a letter "
            f"or digit, got {name!r}"
        )
    return name


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
    """Certificates and tokens of a process, for the calls it serves and those it makes."""

    section: ClassVar[str] = "security"

    tls_certificate_file: Path | None = setting(
        None, "PEM certificate that this process presents; turns TLS on.", check=readable_file
    )
    tls_key_file: Path | None = setting(
        None, "PEM private key of the certificate.", check=readable_file
    )
    tls_authority_file: Path | None = setting(
        None,
        "PEM certificates of the authority that signs the peers' certificates.",
        check=readable_file,
    )
    tls_require_client_certificate: bool = setting(
        False, "Whether callers must present a certificate too (mutual TLS)."
    )
    token_file: Path | None = setting(
        None,
        "File with the bearer token that this process sends, and requires of callers if there is "
        "no tokens_file.",
        check=readable_file,
    )
    tokens_file: Path | None = setting(
        None,
        "File with the tokens that callers may present, a line role:token or role:sha256:SUM each.",
        check=readable_file,
    )
    certificate_roles: bool = setting(
        False, "Whether callers' certificates must name their role: ROLE.role.gradmesh."
    )
    allow_plaintext_token: bool = setting(
        False, "Whether the token may be sent without TLS beyond this machine."
    )
    insecure: bool = setting(
        False,
        "Whether to serve callers without a token or certificate, also beyond this machine; "
        "clusters on this machine then make no token.",
    )

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.tls_certificate_file is not None or self.tls_authority_file is not None

    @property
    def authenticates(self) -> bool:
        """Whether this process asks its callers who they are, and shows them who it is."""
        return bool(self.token_file or self.tokens_file or self.certificate_roles)

    def problems(self) -> Iterable[Problem]:
        """Yield settings without the one that they need."""
        if self.tls_certificate_file is not None and self.tls_key_file is None:
            yield Problem("tls_key_file", "is missing; a certificate needs its private key")
        if self.tls_key_file is not None and self.tls_certificate_file is None:
            yield Problem("tls_certificate_file", "is missing; a private key needs a certificate")
        if self.tls_require_client_certificate and self.tls_authority_file is None:
            yield Problem(
                "tls_authority_file", "is missing; it decides which client certificates are valid"
            )

        if self.certificate_roles and not self.tls_require_client_certificate:
            yield Problem(
                "tls_require_client_certificate", "must be true where certificate_roles is"
            )

    def check_listen(self, key: str, address: str) -> None:
        """Check that a server on an address asks for authentication.

        Args:
            key: The setting that holds the address, as `section.key`.
            address: Where it listens.

        Raises:
            ConfigError: Other machines could call it, and it would serve every caller.
        """
        found = list(self.problems_of_serving(key, address))
        if found:
            raise ConfigError(found)

    def problems_of_serving(self, key: str, address: str) -> Iterable[Problem]:
        """Yield reasons why listening on the address of setting `key` is unsafe."""
        yield from self.problems_at(key, address)
        is_closed = self.authenticates or self.tls_require_client_certificate
        if not (is_closed or self.insecure or is_loopback(address)):
            yield Problem(
                key,
                f"{address!r} can be reached from other machines, and without authentication "
                "every caller could read, write and register; set security.token_file (`gradmesh "
                "token FILE` makes one) or security.tls_require_client_certificate, listen on "
                "127.0.0.1, or give --insecure (security.insecure = true) on a network where "
                "you trust every host",
            )

    def problems_at(self, key: str, address: str) -> Iterable[Problem]:
        """Yield reasons why a token may not be sent to or from the address of setting `key`."""
        tokens = self.token_file is not None or self.tokens_file is not None
        plain = tokens and not self.tls
        if plain and not self.allow_plaintext_token and not is_loopback(address):
            yield Problem(
                key,
                f"the token would travel unencrypted to or from {address!r}; set "
                "security.tls_certificate_file, or security.allow_plaintext_token = true "
                "on a network you trust",
            )


LaneChoice: TypeAlias = Literal["auto", "shm", "tcp", "stream", "unary"]
"""The first lane that both ends can use, or one: as settings and metric labels name it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig(Section):
    """The [transport] table: lanes of the hot calls that a process serves and makes."""

    section: ClassVar[str] = "transport"

    lane: LaneChoice = setting(
        "auto",
        "Lane of hot calls: shared memory on one host (shm), a TCP socket between hosts (tcp), "
        "long-lived gRPC streams (stream), a gRPC call each (unary), for proxies that end streams, "
        "or the first of these that both ends can use (auto).",
    )
    lane_port: int = setting(
        0,
        "TCP port of lanes, on the host this process listens on; 0 takes a free one.",
        minimum=0,
        maximum=65535,
    )
    max_lanes: int = setting(
        256,
        "Lane connections served at once; callers beyond it stay on gRPC.",
        minimum=1,
        maximum=65536,
    )
    max_connections: int = setting(
        8192,
        "gRPC connections accepted at once, further ones are closed; at most three quarters of the "
        "files that the process may open.",
        minimum=16,
        maximum=2**20,
    )

    def connections(self) -> int:
        """Return how many gRPC connections to accept, given the limit of open files."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files == resource.RLIM_INFINITY:
            return self.max_connections
        return max(1, min(self.max_connections, files * 3 // 4))
