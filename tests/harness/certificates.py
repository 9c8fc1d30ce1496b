"""Certificate authorities for tests, and what they sign: servers, clients, the expired and those of another name."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOPBACK: Final = ("localhost", "127.0.0.1")
DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Validity:
    """From when until when a certificate holds, seen from now."""

    since: timedelta = -DAY
    until: timedelta = DAY


EXPIRED: Final = Validity(-2 * DAY, -DAY)
NOT_YET: Final = Validity(DAY, 2 * DAY)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, validity: Validity
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + validity.since)
        .not_valid_after(now + validity.until)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


@dataclass(frozen=True, slots=True)
class Certificate:
    """A key and the certificate for it, with the chain that leads to (but leaves out) the authority."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    chain: Sequence[x509.Certificate] = ()

    @property
    def serial(self) -> int:
        """What tells this certificate from others of the same name."""
        return self.certificate.serial_number

    def chain_pem(self) -> bytes:
        """The certificate, then its chain."""
        return b"".join(each.public_bytes(Encoding.PEM) for each in (self.certificate, *self.chain))

    def key_pem(self, password: str | None = None) -> bytes:
        """The key in PKCS #8, encrypted when there is a password."""
        sealed = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed)

    def write(self, path: Path, *, password: str | None = None) -> Path:
        """Key and chain as one file that its owner alone may read; a file that is there is replaced in one rename."""
        return _replace(path, self.key_pem(password) + self.chain_pem())


class Authority:
    """Signs certificates; the file of `write` makes others trust them."""

    def __init__(self, common_name: str = "Test Authority", *, above: "Authority | None" = None) -> None:
        """Make a key and certificate: its own root, or signed by the authority `above` it."""
        self._name = _name(common_name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        issuer, signer = (self._name, self._key) if above is None else (above._name, above._key)
        self.certificate = (
            _builder(self._name, issuer, self._key.public_key(), Validity(-7 * DAY, 7 * DAY))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(signer, hashes.SHA256())
        )
        self._chain = () if above is None else (self.certificate, *above._chain)

    def pem(self) -> bytes:
        """The authority's certificate, as a trust store."""
        return self.certificate.public_bytes(Encoding.PEM)

    def write(self, path: Path) -> Path:
        """The trust store as a file; one that is there is replaced in one rename."""
        return _replace(path, self.pem())

    def issue(
        self, common_name: str, *, hosts: Sequence[str] = LOOPBACK, validity: Validity = Validity()
    ) -> Certificate:
        """A certificate for a server at `hosts`, good for a client as well. No hosts: for a client only."""
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        building = (
            _builder(_name(common_name), self._name, key.public_key(), validity)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            building = building.add_extension(
                x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False
            )
        return Certificate(key, building.sign(self._key, hashes.SHA256()), self._chain)


def _replace(path: Path, content: bytes) -> Path:
    """Write beside, then rename: a reader sees the old file or the new one."""
    beside = path.with_name(path.name + ".new")
    beside.touch(0o600)
    _ = beside.write_bytes(content)
    return beside.replace(path)
