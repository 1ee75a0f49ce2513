"""Certificates for a test: an authority, a server and a client."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

__all__ = ["certificates"]


def certificates(folder: Path) -> dict[str, Path]:
    """An authority, and certificates that it has signed for a server and a client."""
    now = datetime.datetime.now(datetime.UTC)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    found = {}

    def write(name: str, subject: x509.Name, key: ec.EllipticCurvePrivateKey, is_authority: bool) -> None:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
                ),
                critical=False,
            )
        )
        found[name], found[f"{name}-key"] = folder / f"{name}.pem", folder / f"{name}-key.pem"
        found[name].write_bytes(builder.sign(authority_key, hashes.SHA256()).public_bytes(Encoding.PEM))
        found[f"{name}-key"].write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        )

    write("authority", authority, authority_key, True)
    for name in ("server", "client"):
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        write(name, subject, ec.generate_private_key(ec.SECP256R1()), False)
    return found
