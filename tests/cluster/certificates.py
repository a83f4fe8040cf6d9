"""Certificates for tests of TLS: an authority, and a host at 127.0.0.1 with a certificate of it."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(name: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - datetime.timedelta(hours=1))
        .not_valid_after(NOW + datetime.timedelta(days=1))
    )


def tls_variables(folder: Path, authority: str = "cluster") -> dict[str, str]:
    """Ray's variables for a host of a new authority's cluster; its files lie in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    signer, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _builder(authority, authority, signer).add_extension(
        x509.BasicConstraints(True, None), critical=True
    )
    names = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    host = _builder("host", authority, key).add_extension(names, critical=False)
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files = {
        "RAY_TLS_CA_CERT": root.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        "RAY_TLS_SERVER_CERT": host.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        "RAY_TLS_SERVER_KEY": key.private_bytes(serialization.Encoding.PEM, *plain),
    }
    for variable, content in files.items():
        (folder / variable).write_bytes(content)
    return {"RAY_USE_TLS": "1", **{variable: str(folder / variable) for variable in files}}
