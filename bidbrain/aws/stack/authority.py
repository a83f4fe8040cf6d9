"""The certificate authority of a stack's Ray cluster, and the certificates of its hosts (X.509, RFC 5280).

With TLS Ray asks both ends of a connection for a certificate of this authority, and a host shows one before it is sent
a token. gRPC compares the address that it connects to with those in the certificate, and an instance's address is
unknown before it runs, so each instance gets its own certificate when it boots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# An authority ends with its stack, which deletes it: dates only bound what a forgotten copy is good for.
VALID = timedelta(days=3650)
SKEW = timedelta(days=1)  # clocks of the laptop and of an instance that has just booted may differ
LOOPBACK = "127.0.0.1"


class AuthorityError(ValueError):
    """This is no authority; the message is one sentence."""


@dataclass(frozen=True)
class HostCertificate:
    """A host's certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class Authority:
    """An authority: its certificate (PEM), which is no secret, and its private key (PEM)."""

    certificate: bytes
    key: bytes = field(repr=False)

    @classmethod
    def made(cls, stack: str, now_s: float) -> Authority:
        """A new authority for one stack. now_s: Unix time."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"proteus {stack}")
        start = datetime.fromtimestamp(now_s, UTC)
        builder = _builder(name, name, key.public_key(), start, start + VALID)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = builder.add_extension(identifier, critical=False).sign(key, hashes.SHA256())
        return cls(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))

    @classmethod
    def parsed(cls, text: str) -> Authority:
        """The authority whose `text` this is. Raises AuthorityError."""
        try:
            key = serialization.load_pem_private_key(text.encode(), password=None)
            certificate = x509.load_pem_x509_certificate(text.encode())
        except ValueError as error:
            raise AuthorityError(
                f"the cluster's authority: found {len(text)} characters, expected the PEM of a certificate and its key"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
            raise AuthorityError("the cluster's authority: its key is not that of its certificate")
        return cls(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))

    def text(self) -> str:
        """Certificate and private key as one PEM text, for a place that keeps secrets."""
        return (self.certificate + self.key).decode()

    def issued(self, ip: str, now_s: float, names: Sequence[str] = ()) -> HostCertificate:
        """A certificate for the host at `ip`, as a client and as a server, valid until the authority ends.

        It also names 127.0.0.1, where processes of one host find each other. now_s: Unix time. names: DNS names
        by which others reach the host.
        """
        authority = x509.load_pem_x509_certificate(self.certificate)
        signer = serialization.load_pem_private_key(self.key, password=None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        start = max(datetime.fromtimestamp(now_s, UTC), authority.not_valid_before_utc + SKEW)
        ends = authority.not_valid_after_utc
        builder = _builder(_name(ip), authority.subject, key.public_key(), start, ends)
        addresses = [x509.IPAddress(ip_address(each)) for each in dict.fromkeys((ip, LOOPBACK))]
        every = [*addresses, *(x509.DNSName(each) for each in ("localhost", *names))]
        both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        builder = builder.add_extension(x509.SubjectAlternativeName(every), critical=False).add_extension(
            both, critical=False
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        certificate = builder.add_extension(issuer, critical=False).sign(signer, hashes.SHA256())
        return HostCertificate(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - SKEW)
        .not_valid_after(end)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(serialization.Encoding.PEM, *plain)
