"""A certificate authority for development: files, names, roles and lifetimes of certificates."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from gradmesh.protos.rpcs import ROLES
from gradmesh.sdk.process.private import make_private_folder, write_private
from gradmesh.sdk.process.setting import ConfigError, Problem

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

COORDINATOR = "coordinator"
"""Serves only, so its certificate names no role."""
ISSUED_ROLES = (COORDINATOR, *ROLES)

# Replacing the authority touches every machine, and its key never leaves one folder: ten years.
_AUTHORITY_DAYS = 3650
# Clocks of machines differ: a certificate is valid a little before it was made.
_EARLIER = datetime.timedelta(minutes=10)
_ROLE_NAME = ".role.gradmesh"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateView:
    """What a certificate says.

    Attributes:
        subject: Its subject.
        issuer: Subject of the certificate that signed it.
        names: DNS names and addresses, without that of the role.
        role: The role that it names; empty for none.
        begins: When it becomes valid.
        ends: When it expires.
        is_authority: Whether it may sign others.
    """

    subject: str
    issuer: str
    names: tuple[str, ...]
    role: str
    begins: datetime.datetime
    ends: datetime.datetime
    is_authority: bool

    @property
    def state(self) -> str:
        """Whether it is valid now, in a few words."""
        now = _now()
        if now < self.begins:
            return f"not valid before {moment(self.begins)}"
        if now > self.ends:
            return f"expired {moment(self.ends)}"
        return f"valid for {(self.ends - now).days} days"


@final
class Authority:
    """The folder of a certificate authority: ca.crt, ca.key, and what it has issued.

    Args:
        folder: The folder.

    Raises:
        ConfigError: The library for certificates is not installed.
    """

    def __init__(self, folder: Path) -> None:
        check_library()
        self.folder = folder
        self.certificate_file = folder / "ca.crt"
        self.key_file = folder / "ca.key"

    def make(self) -> None:
        """Make the authority.

        Raises:
            ConfigError: There is one.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        for file in (self.certificate_file, self.key_file):
            if file.exists():
                raise _problem(file, "exists; choose another --folder, or remove it first")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject("gradmesh development authority")
        made = (
            _builder(subject, subject, key.public_key(), _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, _sha256())
        )
        make_private_folder(self.folder)
        _write(made, key, self.certificate_file, self.key_file)

    def issue(
        self, role: str, names: Sequence[str], days: int, *, renew: bool = False
    ) -> tuple[Path, Path]:
        """Issue a certificate; return its file and that of its key.

        Args:
            role: One of `ISSUED_ROLES`.
            names: Host names and addresses, besides those of this machine.
            days: How long it is valid.
            renew: Whether to replace the files of a former one.

        Raises:
            ConfigError: There is no authority here, or there are files of the role.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        file, key_file = self.folder / f"{role}.crt", self.folder / f"{role}.key"
        if not renew and (file.exists() or key_file.exists()):
            raise _problem(file, "exists; give --renew to replace it and its key")
        authority, authority_key = self._load()
        key = ec.generate_private_key(ec.SECP256R1())
        own = () if role == COORDINATOR else (role + _ROLE_NAME,)
        alternatives = [_general_name(one) for one in (*_LOCAL_NAMES, *names, *own)]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = (
            _builder(_subject(f"gradmesh {role}"), authority.subject, key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                critical=False,
            )
            .sign(authority_key, _sha256())
        )
        _write(made, key, file, key_file)
        return file, key_file

    def _load(self) -> "tuple[x509.Certificate, ec.EllipticCurvePrivateKey]":
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        for file in (self.certificate_file, self.key_file):
            if not file.exists():
                raise _problem(file, f"is missing; `gradmesh certs init --folder {self.folder}`")
        key: Any = load_pem_private_key(self.key_file.read_bytes(), None)
        return load(self.certificate_file), key


def check_library() -> None:
    """Check that certificates can be made and read.

    Raises:
        ConfigError: The library is not installed.
    """
    try:
        import cryptography  # noqa: F401  # only whether it is there
    except ImportError:
        raise ConfigError(
            [Problem("certs", "needs `pip install 'gradmesh[certs]'`, or use openssl")]
        ) from None


def load(file: Path) -> "x509.Certificate":
    """Read the first certificate of a PEM file.

    Raises:
        ConfigError: It holds none.
    """
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise _problem(file, f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise _problem(file, "holds no certificate; give a PEM file") from None


def view(certificate: "x509.Certificate") -> CertificateView:
    """Return what a certificate says."""
    from cryptography import x509

    names: list[str] = []
    extensions = certificate.extensions
    try:
        found = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = [str(one.value) for one in found]
    except x509.ExtensionNotFound:
        pass
    try:
        is_authority = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    roles = [name.removesuffix(_ROLE_NAME) for name in names if name.endswith(_ROLE_NAME)]
    return CertificateView(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        names=tuple(name for name in names if not name.endswith(_ROLE_NAME)),
        role=", ".join(roles),
        begins=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
        is_authority=is_authority,
    )


def fits(certificate: "x509.Certificate", authority: "x509.Certificate") -> bool:
    """Return whether an authority signed a certificate."""
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def moment(when: datetime.datetime) -> str:
    """Return a time as an operator compares it with `date -u`."""
    return f"{when.astimezone(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def _builder(
    subject: "x509.Name", issuer: "x509.Name", key: "ec.EllipticCurvePublicKey", days: int
) -> "x509.CertificateBuilder":
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _EARLIER)
        .not_valid_after(_now() + datetime.timedelta(days=days))
    )


def _usage(*, signs: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> "x509.Name":
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError:
        text = f"expected host names and addresses in ASCII, got {name!r}"
        raise ConfigError([Problem("--name", text)]) from None


def _write(
    certificate: "x509.Certificate", key: "ec.EllipticCurvePrivateKey", file: Path, key_file: Path
) -> None:
    """Write the key first: servers keep the former pair until key and certificate fit."""
    from cryptography.hazmat.primitives import serialization

    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(key_file, pem.decode())
    write_private(file, certificate.public_bytes(serialization.Encoding.PEM).decode())


def _sha256() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _problem(file: Path, text: str) -> ConfigError:
    return ConfigError([Problem(str(file), text)])
