"""Certificates and keys for a trial of a federation: a CA, a certificate for the SuperLink, a key for every node.

For a trial: whoever has the folder has all of it. In earnest the certificate comes from your CA, and every node makes
its own key and tells you the public one.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from lasg.errors import LasgError

DAYS = 90


def create(folder: Path | str, hosts: Sequence[str], nodes: Sequence[str]) -> list[Path]:
    """Write ca.crt, server.pem and server.key for these host names, and a pair of keys a node; return the files."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError:
        raise LasgError("this needs Flower: pip install 'lasg[flower]'") from None
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise LasgError(f"{folder} is there already, and not empty: keys are never overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    now = dt.datetime.now(dt.UTC)

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def signed(
        subject: str, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey, ca: bool
    ) -> x509.Certificate:
        made = (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("lasg trial CA"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(days=DAYS))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
        )
        usage = {
            "digital_signature": not ca,
            "key_cert_sign": ca,
            "crl_sign": ca,
            "content_commitment": False,
            "key_encipherment": False,
            "data_encipherment": False,
            "key_agreement": False,
            "encipher_only": False,
            "decipher_only": False,
        }
        made = made.add_extension(x509.KeyUsage(**usage), critical=True)
        if not ca:
            names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
            made = made.add_extension(names, critical=False)
            made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        return made.sign(by, hashes.SHA256())

    def _alternative(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    found = [
        _written(folder / "ca.crt", signed("lasg trial CA", authority, authority, ca=True).public_bytes(pem)),
        _written(folder / "server.pem", signed(hosts[0], server, authority, ca=False).public_bytes(pem)),
        _written(
            folder / "server.key", server.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), secret=True
        ),
    ]
    for name in nodes:
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, plain)
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        found.append(_written(folder / f"{name}.key", private, secret=True))
        found.append(_written(folder / f"{name}.pub", public + b"\n"))
    return found


def _written(path: Path, content: bytes, secret: bool = False) -> Path:
    """Write a file; a secret one can be read by its owner alone from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as file:
        file.write(content)
    return path
